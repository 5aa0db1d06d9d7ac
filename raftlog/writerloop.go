package raftlog

import (
	"fmt"
	"sync"
	"time"

	"queen/internal/crashpoint"
	"queen/internal/plant"
)

// syncAllAbove is the number of logs in one sync beyond which one syncfs is
// cheaper than a fdatasync for each of them (F19).
const syncAllAbove = 8

// syncWorkers sync logs beside the writer's own goroutine. The device takes
// several at once; more threads than this gain nothing.
const syncWorkers = 3

// writerRequest is one thing for the log writer to do; exactly one field is set.
type writerRequest struct {
	append *appendRequest
	pad    uint64       // commit index + 1
	roll   []uint64     // logs whose active file takes no more records
	conf   *confRequest // a membership to save
	stop   func(error)  // called when everything before is done
}

type confRequest struct {
	conf  Membership
	index uint64
}

// writerLoop is the goroutine around a logWriter. Requests are done in order,
// and all that are queued share one sync.
type writerLoop struct {
	w     *logWriter
	cfg   *Config
	stats *stats
	post  func(event)
	fatal func(error)

	mu struct {
		sync.Mutex
		queue []writerRequest
	}
	wake  chan struct{}
	jobs  chan syncJob
	done  chan struct{}
	spare []writerRequest
}

type syncJob struct {
	q    *QueueLog
	done chan<- error
}

// startWriter starts the writer and its sync workers; stop ends them.
func startWriter(w *logWriter, cfg *Config, st *stats, post func(event), fatal func(error)) *writerLoop {
	l := &writerLoop{w: w, cfg: cfg, stats: st, post: post, fatal: fatal,
		wake: make(chan struct{}, 1), jobs: make(chan syncJob), done: make(chan struct{})}
	for range syncWorkers {
		go func() {
			for j := range l.jobs {
				j.done <- j.q.Log.Sync()
			}
		}()
	}
	go l.run()
	return l
}

func (l *writerLoop) submit(r writerRequest) {
	l.mu.Lock()
	l.mu.queue = append(l.mu.queue, r)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *writerLoop) run() {
	defer close(l.done)
	defer close(l.jobs)
	for range l.wake {
		l.mu.Lock()
		batch := l.mu.queue
		l.mu.queue = l.spare[:0]
		l.mu.Unlock()
		stop, err := l.do(batch)
		if err != nil {
			l.fatal(fmt.Errorf("the log cannot be written; nothing after this was answered, fix the disk and start again: %w", err))
		}
		if stop != nil {
			stop(err)
			return
		}
		if err != nil {
			return
		}
		clear(batch)
		l.spare = batch[:0]
	}
}

// do writes a batch, syncs what it touched once, and reports it.
func (l *writerLoop) do(batch []writerRequest) (stop func(error), err error) {
	entries, stop, err := l.write(batch)
	if err == nil {
		err = l.sync(entries)
	}
	if err == nil {
		l.report(batch)
	}
	return stop, err
}

// write hands a batch to the files and counts its entries.
func (l *writerLoop) write(batch []writerRequest) (entries int, stop func(error), err error) {
	for i := range batch {
		r := &batch[i]
		switch {
		case r.append != nil:
			entries += len(r.append.entries)
			err = l.w.write(r.append)
		case r.pad != 0:
			err = l.w.pad(r.pad - 1)
		case r.roll != nil:
			err = l.roll(r.roll)
		case r.conf != nil:
			err = l.w.saveConf(r.conf.conf, r.conf.index)
		case r.stop != nil:
			stop = r.stop
		}
		if err != nil {
			return entries, stop, err
		}
	}
	if plant.Is(plant.AnswerBeforeSync) {
		if _, err := l.w.flush(); err != nil {
			return entries, stop, err
		}
		l.post(reportOf(batch))
	}
	return entries, stop, nil
}

// report tells the core that a batch is durable.
func (l *writerLoop) report(batch []writerRequest) {
	if e := reportOf(batch); e.written != nil && !plant.Is(plant.AnswerBeforeSync) || e.confSaved != 0 {
		l.post(e)
		crashpoint.Hit("write.reported")
	}
}

func reportOf(batch []writerRequest) (e event) {
	for i := range batch {
		switch r := &batch[i]; {
		case r.append != nil:
			e.written = append(e.written, *r.append)
		case r.conf != nil:
			e.confSaved = r.conf.index
		}
	}
	return e
}

// sync makes everything written so far durable: nothing when no log was
// touched, one fdatasync when one was.
func (l *writerLoop) sync(entries int) error {
	logs, err := l.w.flush()
	if err != nil {
		return err
	}
	if len(logs) > 0 {
		begun := l.cfg.Clock.Now()
		crashpoint.Hit("write.sync.before")
		if err := l.syncLogs(logs); err != nil {
			return err
		}
		crashpoint.Hit("write.sync.after")
		d := time.Duration(l.cfg.Clock.Now().Mono - begun.Mono)
		l.stats.synced(len(logs), d)
		if l.cfg.Observer.Sync != nil {
			l.cfg.Observer.Sync(d, len(logs))
		}
	}
	bytes := l.w.synced()
	l.stats.wrote(l.w.durable, bytes)
	if entries > 0 && l.cfg.Observer.Written != nil {
		l.cfg.Observer.Written(entries, bytes)
	}
	return nil
}

func (l *writerLoop) syncLogs(logs []*QueueLog) error {
	if len(logs) > syncAllAbove {
		if err := l.cfg.FS.SyncAll(l.cfg.Dir); err != nil {
			return fmt.Errorf("sync the volume of %s: %w", l.cfg.Dir, err)
		}
		for _, q := range logs {
			if err := q.Log.SyncedByFS(); err != nil {
				return fmt.Errorf("log q%d: %w", q.ID, err)
			}
		}
		return nil
	}
	if plant.Is(plant.SkipOneSync) && len(logs) > 1 {
		logs = logs[:len(logs)-1]
	}
	done := make(chan error, len(logs))
	for _, q := range logs[1:] {
		select {
		case l.jobs <- syncJob{q: q, done: done}:
		default: // all workers are busy
			done <- q.Log.Sync()
		}
	}
	first := logs[0].Log.Sync()
	if len(logs) > 1 {
		crashpoint.Hit("write.sync.between-logs")
	}
	for range logs[1:] {
		if err := <-done; err != nil && first == nil {
			first = err
		}
	}
	return first
}

// roll ends the active files of logs, so that they can be sealed. What is in
// them is durable already, or becomes so with this batch.
func (l *writerLoop) roll(ids []uint64) error {
	for _, id := range ids {
		if q := l.w.store.find(id); q != nil && q.retire() {
			if err := q.Log.Roll(); err != nil {
				return fmt.Errorf("roll log q%d: %w", id, err)
			}
			l.w.store.rolls.Add(1)
		}
	}
	return nil
}
