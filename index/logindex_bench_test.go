package index

import (
	"testing"

	"queen/internal/vfs"
)

// benchIndex is a log of files of 20,000 appends each over parts partitions, as
// a hot queue has it; the last file is not sealed.
func benchIndex(b *testing.B, files int, parts uint64, cache int64) *LogIndex {
	fs := vfs.NewMem(1)
	check(b, fs.MkdirAll(modelDir))
	x, err := OpenLogIndex(fs, modelDir, NewTableCache(cache, 64))
	check(b, err)
	next := make([]uint64, parts)
	const perFile = 20_000
	for seq := uint64(1); seq <= uint64(files); seq++ {
		for i := range uint64(perFile) {
			p := (i * 7919) % parts
			x.AddAppend(AppendRef{Seq: seq, Pos: int64(64 + i*3000), Partition: p + 1, First: next[p], Count: 10, Time: int64(seq*perFile + i)})
			next[p] += 10
		}
		if seq == uint64(files) {
			break
		}
		check(b, x.Seal(SealedFile{Seq: seq, Generation: 1}, func(add func(uint64, uint64)) error {
			for i := range uint64(perFile) * 10 {
				add((seq<<32+i)*0x9E3779B97F4A7C15, i)
			}
			return nil
		}))
		for did := true; did; {
			did, err = x.MergeSome()
			check(b, err)
		}
	}
	return x
}

func BenchmarkLogIndex(b *testing.B) {
	const parts, files = 200, 65
	perPart := uint64(20_000 / parts * 10)
	x := benchIndex(b, files, parts, 64<<20)
	b.Logf("%d table pairs for %d files, memory of the unsealed one %d bytes", x.Tables(), files, x.MemoryBytes())
	run := func(name string, from func(i uint64) uint64, max int) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			i := uint64(0)
			for b.Loop() {
				refs, err := x.Range(1+i%parts, from(i), max)
				if err != nil || len(refs) == 0 {
					b.Fatal(refs, err)
				}
				i++
			}
		})
	}
	run("rangeUnsealed/1", func(i uint64) uint64 { return (files-1)*perPart + i*31%perPart }, 1)
	run("rangeUnsealed/64", func(uint64) uint64 { return (files - 1) * perPart }, 64)
	run("rangeSealedHot/1", func(i uint64) uint64 { return 20*perPart + i*31%perPart }, 1)
	run("rangeSealedHot/64", func(uint64) uint64 { return 20 * perPart }, 64)
	run("rangeSealedAll/1", func(i uint64) uint64 { return i * 0x9E3779B97F4A7C15 % (perPart * (files - 1)) }, 1)
	b.Run("findTxnMiss", func(b *testing.B) {
		b.ReportAllocs()
		i := uint64(0)
		for b.Loop() {
			check(b, x.FindTxn(1, i*0xD6E8FEB86659FD93, func(uint64) bool { return true }))
			i++
		}
	})
	b.Run("findTime", func(b *testing.B) {
		i := uint64(0)
		for b.Loop() {
			_, ok, err := x.FindTime(1+i%parts, int64(i*0x9E3779B97F4A7C15%(20_000*60)))
			if err != nil || !ok {
				b.Fatal(ok, err)
			}
			i++
		}
	})
	b.Run("cache", func(b *testing.B) { b.Logf("%+v", x.cache.Stats()) })
}

func BenchmarkLogIndexAdd(b *testing.B) {
	fs := vfs.NewMem(1)
	x, err := OpenLogIndex(fs, modelDir, NewTableCache(0, 1))
	check(b, err)
	i := uint64(0)
	for b.Loop() {
		x.AddAppend(AppendRef{Seq: 1 + i>>20, Pos: int64(i & 0xFFFFF), Partition: i % 200, First: i / 200 * 10, Count: 10, Time: int64(i)})
		if i&0xFFFFF == 0xFFFFF {
			x.mu.memory = nil
		}
		i++
	}
}

// BenchmarkLogIndexMaintain is what sealing and all merges of 64 files cost,
// for each message: batches of 10.
func BenchmarkLogIndexMaintain(b *testing.B) {
	var wrote int64
	for b.Loop() {
		x := benchIndex(b, 65, 200, 0)
		wrote = x.fs.(*vfs.Mem).Counts().BytesWritten
	}
	const messages = 64 * 200_000
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/messages, "ns/message")
	b.ReportMetric(float64(wrote)/messages, "B/message")
}
