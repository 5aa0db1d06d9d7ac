package index

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"queen/internal/entry"
)

type dedupModelEntry struct {
	partition, offset uint64
	time              int64
	txn               string
}

func uuidText(n uint64) (id [16]byte, text []byte) {
	binary.BigEndian.PutUint64(id[:], n*0x9E3779B97F4A7C15)
	binary.BigEndian.PutUint64(id[8:], n)
	return id, entry.AppendUUID(nil, id)
}

// TestDedupMemoryAgainstList drives the memory beside a plain list. Some hashes
// are made equal on purpose: a hash never decides.
func TestDedupMemoryAgainstList(t *testing.T) {
	checkSome(t, 15, func(t *rapid.T) {
		d := NewDedupMemory(rapid.SampledFrom([]int64{0, 40_000, 200_000}).Draw(t, "budget"))
		d.first = rapid.SampledFrom([]uint32{1, 1<<32 - 1, 1 << 21}).Draw(t, "first")
		clash := rapid.SampledFrom([]uint64{^uint64(0), 0xF00000000000000F, 0}).Draw(t, "hashBits")
		hash := func(p uint64, txn []byte) uint64 { return entry.TxnHash(p, txn) & clash }
		var model []dedupModelEntry
		now, next, sealed := int64(1_000_000), uint64(0), int64(0)
		check := func(p uint64, txn string) {
			var want, got []dedupModelEntry
			for i := len(model) - 1; i >= 0; i-- {
				if e := model[i]; e.partition == p && e.txn == txn {
					want = append(want, e)
				}
			}
			d.Lookup(p, hash(p, []byte(txn)), []byte(txn), func(o uint64, tm int64) bool {
				got = append(got, dedupModelEntry{p, o, tm, txn})
				return true
			})
			// What is newer than Since is all there; older may be missing,
			// but nothing may be wrong or out of order.
			k := 0
			for _, g := range got {
				for k < len(want) && want[k] != g {
					if want[k].time > d.Since() {
						t.Fatalf("%v is missing, since %d", want[k], d.Since())
					}
					k++
				}
				if k == len(want) {
					t.Fatalf("found %v, want %v", got, want)
				}
				k++
			}
			for ; k < len(want); k++ {
				if want[k].time > d.Since() {
					t.Fatalf("%v is missing, since %d", want[k], d.Since())
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				n := rapid.SampledFrom([]int{1, 50, 400}).Draw(t, "n")
				r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
				for range n {
					p := 1 + r.Uint64N(3)
					now += r.Int64N(55) - 5 // boot adds log by log
					next++
					k := r.Uint64N(next)
					id, text := uuidText(k)
					switch r.IntN(4) {
					case 0:
						d.Add(p, next, hash(p, text), now, id[:], true)
					case 1:
						d.Add(p, next, hash(p, text), now, text, false)
					case 2:
						text = bytes.ToUpper(text)
						d.Add(p, next, hash(p, text), now, text, false)
					case 3:
						text = fmt.Appendf(nil, "t%d", k)
						d.Add(p, next, hash(p, text), now, text, false)
					}
					model = append(model, dedupModelEntry{p, next, now, string(text)})
				}
			},
			"addLong": func(t *rapid.T) {
				text := bytes.Repeat([]byte{'x'}, rapid.SampledFrom([]int{0, 1, 127, 128, 4000, 65535}).Draw(t, "len"))
				next++
				now++
				d.Add(1, next, hash(1, text), now, text, false)
				model = append(model, dedupModelEntry{1, next, now, string(text)})
			},
			"evict": func(t *rapid.T) {
				want := d.WantSealed()
				if want != 0 && d.Bytes() <= d.budget {
					t.Fatalf("wants to be sealed with %d of %d bytes", d.Bytes(), d.budget)
				}
				if rapid.Bool().Draw(t, "partly") {
					want = now - 1000
				}
				sealed = max(sealed, want)
				d.Evict(want)
				if d.Since() > sealed {
					t.Fatalf("since %d, sealed through %d", d.Since(), sealed)
				}
			},
			"": func(t *rapid.T) {
				for range min(len(model), 3) {
					e := model[rapid.IntRange(0, len(model)-1).Draw(t, "e")]
					check(e.partition, e.txn)
					check(e.partition+1, e.txn)
				}
				check(1, "")
				check(1, "never added")
			},
		})
	})
}

func TestDedupMemoryStaysInBudget(t *testing.T) {
	const budget = 1 << 20
	d := NewDedupMemory(budget)
	var txn [8]byte
	for i := uint64(1); i <= 200_000; i++ {
		binary.LittleEndian.PutUint64(txn[:], i)
		d.Add(1, i, entry.TxnHash(1, txn[:]), int64(i), txn[:], false)
		d.Evict(d.WantSealed())
		if d.Bytes() > budget+budget/3 { // all tables grow at about the same time
			t.Fatalf("%d bytes after %d ids", d.Bytes(), i)
		}
	}
	if d.Len() < 25_000 || d.Since() == 0 {
		t.Errorf("%d ids in %d bytes since %d", d.Len(), d.Bytes(), d.Since())
	}
	for i := uint64(d.Since()) + 1; i <= 200_000; i++ {
		binary.LittleEndian.PutUint64(txn[:], i)
		found := false
		d.Lookup(1, entry.TxnHash(1, txn[:]), txn[:], func(o uint64, _ int64) bool { found = o == i; return true })
		if !found {
			t.Fatalf("%d is missing, since %d", i, d.Since())
		}
	}
}

// TestDedupMemoryStaleSlotsDoNotComeBack drops so much that references wrap.
func TestDedupMemoryStaleSlotsDoNotComeBack(t *testing.T) {
	d := NewDedupMemory(0)
	d.unitShift = 20 // 4096 chunks instead of four million
	txn := []byte("early")
	d.Add(1, 1, 99, 1, txn, false)
	numbers := uint32(1) << (32 - d.unitShift)
	other := bytes.Repeat([]byte{1}, minDedupChunk)
	for i := range numbers + 2 {
		d.Add(1, uint64(i+2), uint64(i)*0x9E3779B97F4A7C15, int64(i+2), other, false)
		d.Evict(int64(i + 1))
	}
	d.Lookup(1, 99, txn, func(o uint64, _ int64) bool { t.Errorf("found at %d", o); return true })
	if len(d.chunks) > 2 {
		t.Errorf("%d chunks", len(d.chunks))
	}
}

func BenchmarkDedupMemory(b *testing.B) {
	const n = 4_000_000
	d := NewDedupMemory(512 << 20)
	var txn [20]byte
	add := func(i uint64) {
		binary.LittleEndian.PutUint64(txn[:], i)
		p := i % 200
		d.Add(p, i, entry.TxnHash(p, txn[:]), int64(i), txn[:], false)
	}
	for i := uint64(0); i < n; i++ {
		add(i)
	}
	b.Run("add", func(b *testing.B) {
		b.ReportAllocs()
		i := uint64(n)
		for b.Loop() {
			add(i)
			i++
			if i%4096 == 0 {
				d.Evict(int64(i))
			}
		}
		b.ReportMetric(float64(d.Bytes())/float64(d.Len())-20, "overhead-B/id")
	})
	b.Run("lookupMiss", func(b *testing.B) {
		b.ReportAllocs()
		i := uint64(1) << 40
		for b.Loop() {
			binary.LittleEndian.PutUint64(txn[:], i)
			p := i % 200
			d.Lookup(p, entry.TxnHash(p, txn[:]), txn[:], func(uint64, int64) bool { b.Fatal("found"); return false })
			i++
		}
	})
	for _, warm := range []bool{false, true} {
		b.Run(fmt.Sprintf("lookupMissAndAdd/batch10/warm=%v", warm), func(b *testing.B) {
			i := uint64(1)<<41 + uint64(d.Len())<<8
			var txns [10][20]byte
			var hashes [10]uint64
			for b.Loop() {
				for k := range txns {
					binary.LittleEndian.PutUint64(txns[k][:], i)
					hashes[k] = entry.TxnHash(7, txns[k][:])
					i++
				}
				if warm {
					d.Warm(hashes[:])
				}
				for k := range txns {
					d.Lookup(7, hashes[k], txns[k][:], func(uint64, int64) bool { b.Fatal("found"); return false })
					d.Add(7, i, hashes[k], int64(i), txns[k][:], false)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/10, "ns/id")
		})
	}
	b.Run("lookupHit", func(b *testing.B) {
		b.ReportAllocs()
		i, found := uint64(0), 0
		for b.Loop() {
			k := n - 1 - i*7919%(n/2)
			binary.LittleEndian.PutUint64(txn[:], k)
			p := k % 200
			d.Lookup(p, entry.TxnHash(p, txn[:]), txn[:], func(uint64, int64) bool { found++; return false })
			i++
		}
	})
}
