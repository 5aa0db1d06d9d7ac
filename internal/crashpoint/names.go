package crashpoint

// names lists every point, sorted; a test compares it with the calls of Hit in the source. A name says where in which
// operation: <operation>.<step>.<place>.
var names = []string{
	"reclaim.merge.before-remove",
	"reclaim.rewrite.after-rename",
	"reclaim.rewrite.before-rename",
	"reclaim.rewrite.before-sync",
	"reclaim.rewrite.sides-removed",
	"reclaim.tables.before-remove",
	"reclaim.tables.before-rename",
	"reclaim.unlink.after-sync",
	"reclaim.unlink.before-remove",
	"reclaim.unlink.before-sync",
	"reclaim.unlink.segment-removed",
}
