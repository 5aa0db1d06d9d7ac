// Package segment stores records in append-only files: framing, checksums,
// rolling, reading, the valid end of a file, and cuts. A log is a directory of
// segment files. The package does not know what is in a record's body, what
// was promised about it, or that there is more than one log; whoever owns the
// log decides what a torn end means.
//
// One goroutine (the log writer) appends, flushes, syncs, rolls and cuts a
// log; any number read and scan beside it. See Log.
//
// # FORMAT
//
// Versions 1 and 2. All numbers are little endian and unaligned.
//
// A log is a directory of its own. Its segment files are named by a sequence
// number, 20 digits and ".seg" (00000000000000000001.seg is the first), so
// that a listing is the log's order. Numbers rise; gaps are files that were
// removed whole. Other names in the directory belong to others and are left
// alone. A directory whose name ends in ".removed" is garbage of an unfinished
// Remove.
//
// File header, 64 bytes at pos 0:
//
//	pos  size  field       meaning
//	0    8     magic       "QUEENSEG"
//	8    4     version     1 for a file that was appended to, 2 for one that replaces others
//	12   4     zero
//	16   8     log id      of the log that the file belongs to
//	24   8     seq         the number in the file's name, from 1
//	32   8     generation  1 for a file that was appended to; a file that replaces
//	                       another of the same seq has a higher one
//	40   8     covers      version 2: the last file whose records were moved into this one, at
//	                       least seq; version 1: zero
//	48   8     zero
//	56   8     xxhash64    seed 0, over bytes [0, 56); also the salt of the records
//
// Version 2 adds "covers". A build that only knows version 1 would take the files from seq+1 to covers, if a crash
// left them, for parts of the log; they are garbage, and Open passes them over. A file that is being written to
// replace others has the suffix ".tmp"; after a crash it is garbage too.
//
// The place of magic, version and checksum, and the size of the header, stay
// the same in every version, so that any build can tell a newer file from a
// damaged one.
//
// Records follow from pos 64 on, back to back, without padding (an fsync
// writes whole pages anyway, and the checksum finds a record that is cut):
//
//	pos  size  field     meaning
//	0    4     length    bytes of the body, 1 to 268,435,456 (256 MiB); 0 is no record
//	4    8     xxhash64  seed 0, over the whole record, with this field holding
//	                     (salt + the record's pos in the file) mod 2^64 meanwhile
//	12   n     body
//
// So a checksum covers the length, the body, the place in the file and, through
// the salt, which is the header's checksum, the log, the number and the generation.
// A record of another file, of an older generation, or at another place is not
// valid, also when it stands in the body of a record.
//
// The valid end of a file is the end of the last record of the run that starts
// at pos 64. Only zeros may follow it.
//
// What a reader does:
//
//	violation                                             result
//	file shorter than 64 bytes, magic or header checksum  newest file: *TornError at pos 0 (an unfinished
//	                                                      creation); other files: *CorruptError
//	version above 2                                       error that wraps ErrNewerFormat
//	version 0, wrong log id or seq, non-zero reserve      *CorruptError, also in the newest file
//	length 0 and only zeros up to the end                 clean end before them
//	length 0 with other bytes after it, length above      newest file: *TornError with the position, which
//	256 MiB or beyond the end of the file, fewer than     says whether valid records follow; other files:
//	12 bytes left, wrong checksum                         *CorruptError
//	read of a given record: anything but that record      *CorruptError
//	read or write error of the file system                that error; never a reason to cut
//
// Whether valid records follow is found out by trying every position, with one
// limit: when the bytes look like records nearly everywhere and are none, the
// search stops after a second's work and says how many bytes it left out.
//
// The length is checked against the limit and the size of the file before
// anything is allocated for it.
//
// # Durability
//
// Bytes are appended with plain writes behind the last record. A flush of at
// most 2 KiB that reaches the end of the file also writes zeros for those that
// follow, as many as the file has bytes, in steps of 4 to 16 KiB: a sync that
// has no new size to write costs a third less. Roll and Truncate take them away
// again, Close does unless the log was parked. What a process finds behind the
// records of the newest file it goes on to use (EndAt).
//
// Sync is one fdatasync; the first one of a file also syncs
// the log's directory, and the first one of a log the directories above it
// that were created for it. Roll syncs a file and its name before the next
// file is created. From that follows:
//
//   - Only the newest file can have a torn end. In all others every byte was
//     durable before the next file existed.
//   - A file that is not the newest never changes, except that Truncate may
//     make it the newest and shorten it, and that Rewrite replaces it whole: the new file is
//     durable before the rename, and the rename before anything that it covers is removed.
//   - Truncate removes files from the newest back, each removal durable before
//     the next, so a crash in a cut leaves a log that ends early and has no hole.
//
// Assumed of the disk: fdatasync makes content and size durable, fsync of a
// directory its entries, a rename is whole or not at all. Nothing is assumed
// of sector sizes or of the order of unsynced writes: of several unsynced
// flushes a later one may survive alone, and then valid records follow bad
// bytes although nothing was lost that had been promised.
//
// # Changes
//
// A new record or header layout gets the next version. A reader reads all
// older versions; a file is never upgraded in place, so the build that brings
// version 2 has to roll before it appends to a log whose newest file has
// version 1.
package segment
