package index

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"queen/internal/vfs"
)

func TestScanFixtures(t *testing.T) {
	mem := vfs.NewMem(1)
	makeFixtures(t, mem)
	var out []string
	end, err := ScanRows(mem, "q7/"+rowsName(1), func(pos int64, r RowRecord) error {
		out = append(out, fmt.Sprintf("%d kind %d key %q value %q range %q %q to %d", pos, r.Kind, r.Key, r.Value, r.Lo, r.Hi, r.Footer.To))
		return nil
	})
	check(t, err)
	want := strings.Split(`32 kind 1 key "key" value "value" range "" "" to 0
54 kind 1 key "gone" value "x" range "" "" to 0
73 kind 1 key "range" value "x" range "" "" to 0
93 kind 4 key "" value "" range "" "" to 2
199 kind 2 key "gone" value "" range "" "" to 0
216 kind 3 key "" value "" range "r" "s" to 0
232 kind 4 key "" value "" range "" "" to 7`, "\n")
	if !slices.Equal(out, want) || end != 333 {
		t.Errorf("end %d, records\n%s", end, strings.Join(out, "\n"))
	}
	check(t, mem.Flip("q7/"+rowsName(1), 220, 1))
	var damage *CorruptError
	if _, err := ScanRows(mem, "q7/"+rowsName(1), func(int64, RowRecord) error { return nil }); !errors.As(err, &damage) || damage.Pos != 216 {
		t.Errorf("after a flip at 220: %v", err)
	}
	infos, err := mem.List("q7")
	check(t, err)
	var files, appends, values, ids int
	for _, i := range infos {
		if _, _, _, _, ok := parseTableName(i.Name); !ok {
			continue
		}
		check(t, ScanTable(mem, "q7/"+i.Name, TableVisitor{
			File:   func(FileInfo) { files++ },
			Append: func(AppendRef) { appends++ },
			Value:  func(uint64, uint64, int64) { values++ },
			Txn:    func(uint64, uint64) { ids++ },
		}))
	}
	if files != 18 || appends != 9*40 || values != 9 || ids != 9*190 {
		t.Errorf("%d files, %d appends, %d values, %d ids", files, appends, values, ids)
	}
}
