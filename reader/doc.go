// Package reader turns files into chunks, chunks into records and records into
// batches.
//
// # Planning
//
// NewPlan lists the files behind a number of paths and cuts each into chunks:
// chunk i of a file is its bytes [i·c, (i+1)·c), and a record belongs to the
// chunk in which its first byte lies, so planning needs names, sizes and a
// look at each file's head and tail, never a scan. Entries keep their order;
// a directory or a glob is expanded recursively and sorted bytewise; names
// that start with "_" or "." are skipped in it; empty files have no chunk. Two
// processes with the same files have the same Fingerprint; Diff tells the
// first difference to the manifest with which a job was started.
//
// # Reading
//
// Plan.Open gives a Reader of one chunk. Next fills a Batch in compact form
// and reuses its memory: reading allocates nothing once the memory has grown
// to its size. Every chunk ends with exactly one batch that is marked Last; it
// may be shorter than the others, and is empty only if the chunk has no good
// record. Batch n of a chunk consists of the same records whoever reads it:
// with Shuffle the records are permuted within windows of Window records by
// (seed, pass, chunk), and this permutation is part of the formats.
//
// # Formats
//
// Libsvm text carries its own keys. CSV and TSV have Columns: they say which
// is the label, and what keys and values the others make. NewColumnsPlan reads
// the first line of each file to find them; Plan.Check looks whether other files
// begin like libsvm text. Files that end in .gz or .zst are
// decompressed; such a file is one chunk. Inspect looks through a file and
// says what its columns hold.
//
// # Errors
//
// ErrNoData: there is nothing to plan; ErrColumns: a file does not have the
// columns that are asked for; ErrFormat: it is clearly of another format. They
// are mistakes in the configuration.
//
// ErrData: a planned file vanished, changed or became unreadable. Fatal to the
// process: its view of the data is not that of the job.
//
// ErrBadData: the chunk has more bad records than allowed, or is damaged
// beyond telling its records apart. Fatal to the chunk
// only; the error names file, line and reason.
//
// Everything else is a context's error. A Plan may be used by many goroutines
// at once; a Reader belongs to one.
package reader
