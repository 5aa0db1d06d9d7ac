// Package plant lets a build carry one known bug, so that the tools which look
// for such bugs can show that they find it. A build without the tag "bug" has
// none of them, and nothing of this package is left in it. With the tag the bug
// is chosen when the program is linked:
//
//	go build -tags bug -ldflags "-X queen/internal/plant.name=replay-past-hole"
package plant

// Bug is the name of a planted bug.
type Bug string

// The bugs, each with what it breaks.
const (
	// AnswerBeforeSync: calls are answered when their entry is written, not when
	// it is durable (I3).
	AnswerBeforeSync Bug = "answer-before-sync"
	// SkipOneSync: of several logs that an entry touches one is not synced (I3).
	SkipOneSync Bug = "skip-one-sync"
	// IgnoreCopyCount: a boot takes an entry of which copies are missing (I1).
	IgnoreCopyCount Bug = "ignore-copy-count"
	// ReplayPastHole: a boot goes on behind an entry that is not there (I1).
	ReplayPastHole Bug = "replay-past-hole"
	// FooterBeforeRows: a checkpoint's footer may be durable before its rows (F5).
	FooterBeforeRows Bug = "footer-before-rows"
	// FooterTooEarly: a footer is written before its last entry is durable (F5).
	FooterTooEarly Bug = "footer-too-early"
	// CutNotDurable: what a boot has cut can be back after a power cut (F3).
	CutNotDurable Bug = "cut-not-durable"
	// SkipDirSync: the name of a file that was made may not be durable (I6).
	SkipDirSync Bug = "skip-dir-sync"
	// CountRecords: a boot counts records of an entry instead of the logs that
	// have a copy (I1).
	CountRecords Bug = "count-records"
	// BadSumIsEnd: a wrong checksum is taken for the end of the log (I2).
	BadSumIsEnd Bug = "bad-sum-is-end"
	// StaleTable: a side table counts although its file is another one by now (I4).
	StaleTable Bug = "stale-table"
	// UnlinkTooEarly: files go before the footer that does not list them is durable (F10).
	UnlinkTooEarly Bug = "unlink-too-early"
	// ReclaimAhead: files are judged by what is applied instead of by the newest
	// checkpoint (F10).
	ReclaimAhead Bug = "reclaim-ahead"
)

// Bugs lists all of them.
var Bugs = []Bug{
	AnswerBeforeSync, SkipOneSync, IgnoreCopyCount, ReplayPastHole, FooterBeforeRows, FooterTooEarly, CutNotDurable,
	SkipDirSync, CountRecords, BadSumIsEnd, StaleTable, UnlinkTooEarly, ReclaimAhead,
}
