package reader

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

var (
	// ErrNoData: a path is missing, or there is nothing to read behind it.
	ErrNoData = errors.New("no data")
	// ErrFormat: a file is clearly of another format than the one it is read as.
	ErrFormat = errors.New("wrong format")
	// ErrData: a planned file vanished, changed or became unreadable.
	ErrData = errors.New("data vanished, changed or became unreadable")
	// ErrBadData: a chunk has more bad records than allowed.
	ErrBadData = errors.New("bad data")
)

// DataError says what happened to a planned file. It is an ErrData.
type DataError struct {
	File   string
	Reason string
	Err    error // may be nil
}

// Error names file and reason.
func (e *DataError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("reader: %s: %s: %v", e.File, e.Reason, e.Err)
	}
	return fmt.Sprintf("reader: %s: %s", e.File, e.Reason)
}

// Unwrap gives ErrData and the cause.
func (e *DataError) Unwrap() []error { return []error{ErrData, e.Err} }

// BadRecord is one record that could not be read.
type BadRecord struct {
	File string
	// Line counts from 1. It is 0 where the record lies so deep in a file that
	// counting lines would take long; Offset is always right.
	Line   int64
	Offset int64
	Reason string
}

// String is "file:line: reason".
func (b BadRecord) String() string {
	if b.Line == 0 {
		return fmt.Sprintf("%s: byte %d: %s", b.File, b.Offset, b.Reason)
	}
	return fmt.Sprintf("%s:%d: %s", b.File, b.Line, b.Reason)
}

// BadDataError fails a chunk: it has more than Max bad records, and this is
// the first one too many. It is an ErrBadData.
type BadDataError struct {
	BadRecord
	Max int
	// Fatal: it is no single record, and would fail the chunk whatever Max is.
	Fatal bool
}

// Error names file, line and reason.
func (e *BadDataError) Error() string {
	switch {
	case e.Fatal:
		return "reader: bad data: " + e.String()
	case e.Max == 0:
		return "reader: bad record: " + e.String()
	}
	return fmt.Sprintf("reader: bad record: %s (more than %d in this chunk)", e.BadRecord, e.Max)
}

// Unwrap gives ErrBadData.
func (e *BadDataError) Unwrap() error { return ErrBadData }

// countLimit bounds how far into a file lines are counted for a message.
const countLimit = 1 << 30

// lineCounter finds the line of an offset. Lines are counted only when an
// error needs them, so that reading itself never keeps count.
type lineCounter struct {
	offset int64 // the newlines in [0, offset) have been counted
	lines  int64
	buf    []byte
}

// line is the line, from 1, in which offset lies; 0 if that is unknown.
func (c *lineCounter) line(f io.ReaderAt, offset int64) int64 {
	if offset > countLimit || offset < c.offset {
		return 0
	}
	if c.buf == nil {
		c.buf = make([]byte, 64<<10)
	}
	for c.offset < offset {
		piece := c.buf[:min(int64(len(c.buf)), offset-c.offset)]
		if n, err := f.ReadAt(piece, c.offset); n < len(piece) || err != nil && !errors.Is(err, io.EOF) {
			return 0
		}
		c.lines += int64(bytes.Count(piece, []byte{'\n'}))
		c.offset += int64(len(piece))
	}
	return c.lines + 1
}
