package raftlog

import (
	"fmt"
	"slices"

	"queen/internal/entry"
)

// SystemLog is the log of everything that touches no queue.
const SystemLog = 0

// Layout maps queues onto the logs of this node. It is part of the node's
// identity and never of what raft replicates (F9).
type Layout struct {
	// Shards is QUEEN_QLOG_SHARDS: 0 gives every queue a log of its own.
	Shards int
}

// Log is the id of the log that keeps the messages of queue.
func (l Layout) Log(queue uint64) uint64 {
	if queue == 0 {
		return SystemLog
	}
	if l.Shards > 0 {
		return 1 + queue%uint64(l.Shards)
	}
	return queue
}

// LogDirName is the name of a log's directory below log/.
func LogDirName(id uint64) string { return fmt.Sprintf("q%d", id) }

// ParseLogDirName is the log id of a directory name below log/.
func ParseLogDirName(name string) (id uint64, ok bool) {
	if _, err := fmt.Sscanf(name, "q%d", &id); err != nil {
		return 0, false
	}
	return id, LogDirName(id) == name
}

// touched appends to dst the ids of the logs that hold a part of e, rising;
// the system log when e names no queue.
func (l Layout) touched(dst []uint64, e *entry.Entry) []uint64 {
	for i := range e.Appends {
		dst = append(dst, l.Log(e.Appends[i].Queue))
	}
	for _, q := range e.Touches {
		dst = append(dst, l.Log(q))
	}
	for i := range e.Values {
		if q := e.Values[i].Queue; q != 0 {
			dst = append(dst, l.Log(q))
		}
	}
	if len(dst) == 0 {
		return append(dst, SystemLog)
	}
	slices.Sort(dst)
	return slices.Compact(dst)
}
