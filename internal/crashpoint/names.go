package crashpoint

// names lists every point, sorted; a test compares it with the calls of Hit in the source. A name says where in which
// operation: <operation>.<step>.<place>.
var names = []string{
	"boot.cut.log",
	"boot.cut.marked",
	"boot.durable",
	"boot.opened",
	"boot.read",
	"boot.rows.loaded",
	"checkpoint.compacted.before-remove",
	"checkpoint.footer.synced",
	"checkpoint.row.put",
	"checkpoint.rows.synced",
	"cut.marked",
	"replace.renamed",
	"replace.written",
	"roll.synced",
	"roll.trimmed",
	"seal.pair.synced",
	"seal.table.renamed",
	"seal.table.written",
	"segment.created",
	"write.flush.between-logs",
	"write.reported",
	"write.sync.after",
	"write.sync.before",
	"write.sync.between-logs",
}
