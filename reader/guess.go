package reader

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
)

// looksLike says what a file seems to be if the beginning of its content is
// clearly not text of the format, and what to do: the rest of a sentence about
// the file. Otherwise it is empty. It explains what could not be read, and
// decides nothing alone. The delimiter is that of formats with columns.
func looksLike(format string, delimiter byte, head []byte) string {
	if what := magic(head); what != "" {
		return what
	}
	if bytes.IndexByte(head, 0) >= 0 {
		return "has NUL bytes: it is damaged, or no text at all"
	}
	line := firstText(head)
	switch {
	case bytes.IndexByte(head, '\r') >= 0 && bytes.IndexByte(head, '\n') < 0:
		return `ends its lines with CR only: convert it, for example with tr '\r' '\n'`
	case len(line) == 0:
		return ""
	case line[0] == '{' || line[0] == '[':
		return "looks like JSON: write it as csv"
	case vowpal(bytes.Fields(line)):
		return "looks like text for Vowpal Wabbit, which is not implemented in this version"
	case format == Libsvm:
		return notLibsvm(line)
	}
	return notTable(format, delimiter, line)
}

// LooksLike is what a text that begins like this seems to be if it is clearly
// not of the format, and what to do, like "looks like JSON: write it as csv".
// It explains what could not be read; a text that could may look like anything.
// Columns are nil for formats without.
func LooksLike(format string, columns *Columns, head []byte) string {
	var delimiter byte
	if columns != nil {
		if c, err := columns.prepared(format); err == nil {
			delimiter = c.Delimiter
		}
	}
	return looksLike(format, delimiter, head[:min(len(head), sample)])
}

// magic knows files by their first bytes.
func magic(head []byte) string {
	for _, known := range []struct{ prefix, what string }{
		{"\x1f\x8b", "is compressed by gzip: its name must end in .gz, or unpack it"},
		{"\x28\xb5\x2f\xfd", "is compressed by zstd: its name must end in .zst, or unpack it"},
		{"BZh", "is compressed by bzip2, which is not implemented in this version: compress it as .gz or .zst"},
		{"\xfd7zXZ", "is compressed by xz, which is not implemented in this version: compress it as .gz or .zst"},
		{"PK\x03\x04", "is a zip archive, as spreadsheets are: unpack it, or save it as csv"},
		{"PAR1", "is Parquet, which is not implemented in this version: write it as csv"},
		{"\xff\xfe", "is UTF-16: convert it, for example with iconv -f UTF-16 -t UTF-8"},
		{"\xfe\xff", "is UTF-16: convert it, for example with iconv -f UTF-16 -t UTF-8"},
		{"\x7fELF", "is a program"},
		{"%PDF", "is a PDF document: save its table as csv"},
	} {
		if bytes.HasPrefix(head, []byte(known.prefix)) {
			return known.what
		}
	}
	return ""
}

// firstText is the first line that is neither blank nor a # comment, or its
// beginning, without BOM and blanks around it.
func firstText(head []byte) []byte {
	for line := range bytes.Lines(bytes.TrimPrefix(head, bom)) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			return line
		}
	}
	return nil
}

// notLibsvm says what a line seems to be that is no libsvm text.
func notLibsvm(line []byte) string {
	words := bytes.Fields(line)
	switch d := guessDelimiter("", line); {
	case len(words) > 1 && bytes.Count(words[1], []byte(":")) == 2:
		return "looks like libffm text (field:key:value), which is not implemented in this version"
	case bytes.IndexByte(line, ':') >= 0 || bytes.IndexByte(line, d) < 0:
		return ""
	case d == ',':
		return "looks like csv: set data.format: csv"
	case d == '\t':
		return "looks like tsv: set data.format: tsv"
	default:
		return fmt.Sprintf("looks like csv: set data.format: csv and data.csv.delimiter: %q", string(d))
	}
}

// vowpal tells a label that is followed by features behind a bar.
func vowpal(words [][]byte) bool {
	if len(words) < 2 || words[1][0] != '|' {
		return false
	}
	_, isNumber := decimal(padded(string(words[0])))
	return isNumber
}

// notTable says what a line seems to be whose fields are not parted by the
// delimiter.
func notTable(format string, delimiter byte, line []byte) string {
	if bytes.IndexByte(line, delimiter) >= 0 {
		return ""
	}
	words := bytes.Fields(line)
	switch d := guessDelimiter("", line); {
	case len(words) > 1 && bytes.IndexByte(words[1], ':') > 0 && isDigit(words[1][0]):
		return "looks like libsvm text: set data.format: libsvm"
	case bytes.IndexByte(line, d) < 0 && len(words) > 2:
		return "seems to part its fields by blanks: write commas instead"
	case bytes.IndexByte(line, d) < 0:
		return ""
	case format == CSV && d == '\t':
		return "looks like tsv: set data.format: tsv"
	case format == TSV && d == ',':
		return "looks like csv: set data.format: csv"
	default:
		return fmt.Sprintf("seems to part its fields by %q: set data.csv.delimiter", string(d))
	}
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// headOf is the beginning of what can be read of a file's content.
func headOf(f io.ReaderAt) []byte {
	head := make([]byte, sample)
	n, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil
	}
	return head[:n]
}

// Check looks at the beginning of each file, as is worth while before a job is
// made of them. ErrFormat: a file is clearly of another format; ErrNoData: none
// has anything but blank lines and comments. (Files with columns have been
// looked at by NewColumnsPlan; compressed files are left to whoever reads
// them.)
func (p *Plan) Check() error {
	if p.Format != Libsvm {
		return nil
	}
	records := false
	for _, file := range p.Files {
		if Compressed(file.Path) {
			records = true
			continue
		}
		f, err := os.Open(file.Path)
		if err != nil {
			return fmt.Errorf("reader: %w: %w", ErrNoData, err)
		}
		head := headOf(f)
		f.Close()
		some, what := beginning(head, int64(len(head)) < file.Size)
		if what != "" {
			return fmt.Errorf("reader: %s: %w: the file %s", file.Path, ErrFormat, what)
		}
		records = records || some
	}
	if !records {
		return fmt.Errorf("reader: %s: %w: there are only blank lines and comments", p.Files[0].Path, ErrNoData)
	}
	return nil
}

// beginning reads the first record in the beginning of a file of libsvm text:
// whether there may be one, and, if it is none, what the file looks like
// instead. More tells that the file goes on behind it.
func beginning(head []byte, more bool) (records bool, looks string) {
	if !more {
		head = append(head, '\n')
	}
	end := bytes.LastIndexByte(head, '\n') + 1
	text := append(head[:end:end], make([]byte, slack)...)
	var p parser
	keys, values := make([]uint64, sample), make([]float32, sample) // more than a line here can have
	for i := 0; i < end; {
		next, _, st := p.record(text, i, keys, values, 0)
		switch st {
		case blank:
			i = next
		case bad:
			return true, looksLike(Libsvm, 0, head)
		default:
			return true, ""
		}
	}
	return more, ""
}
