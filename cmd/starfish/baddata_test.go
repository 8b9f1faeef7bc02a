package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// wrong is one mistake and the answer to it.
type wrong struct {
	name string
	file string // name of the data file; without one: `in`, or `in.csv`
	text string // what it holds
	data string // more of the section data
	more string // more of the spec
	args []string
	code int
	want string // all that is said on stderr, without the directory and "starfish: "
}

// TestBadData: each kind of file that cannot be what the spec says it is ends
// with the documented code and exactly one line, which names place and advice.
func TestBadData(t *testing.T) {
	for _, c := range badLibsvm() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.answered(t, "libsvm")
		})
	}
	for _, c := range badCSV() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.answered(t, "csv")
		})
	}
}

// every is how the error of a job of one chunk begins.
const every = "job bad has failed: every chunk of pass 0 failed; chunk 0: bad record: "

// answered makes the mistake and compares the answer.
func (c wrong) answered(t *testing.T, format string) {
	dir := t.TempDir()
	if c.file == "" {
		c.file = map[string]string{"libsvm": "in", "csv": "in.csv"}[format]
	}
	require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(c.file)), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, c.file), []byte(c.text), 0o644))
	name, _, _ := strings.Cut(c.file, "/")
	data := "train: [" + name + "]"
	if format == "csv" {
		data += ", format: csv, label: y"
	}
	if c.data != "" {
		data += ", " + c.data
	}
	spec := "job: bad\ndata: {" + data + "}\nmodel: {type: logistic}\n" + c.more
	require.NoError(t, os.WriteFile(filepath.Join(dir, "spec.yaml"), []byte(spec), 0o644))
	c.said(t, dir, "run", "-f", "spec.yaml", "--pservers", "1", "--trainers", "1", "--log-level", "error")
}

// said runs a command in a directory and compares code and stderr.
func (c wrong) said(t *testing.T, dir string, args ...string) {
	t.Helper()
	call := newCall(t, append(args, c.args...)...)
	call.cmd.Dir = dir
	code := call.run()
	stderr := strings.TrimSuffix(call.stderr.String(), "\n")
	require.Equal(t, "starfish: "+c.want, strings.ReplaceAll(stderr, dir+"/", ""))
	require.Equal(t, c.code, code)
	require.Empty(t, call.stdout.String())
	call.leavesNothing()
}

func badLibsvm() []wrong {
	return []wrong{
		{name: "csv with a header", text: "y,a\n1,x\n0,z\n", code: 2,
			want: "in: wrong format: the file looks like csv: set data.format: csv"},
		{name: "csv without header", text: "1,2,3\n0,4,5\n", code: 2,
			want: "in: wrong format: the file looks like csv: set data.format: csv"},
		{name: "csv with semicolons", text: "y;a\n1;x\n", code: 2,
			want: `in: wrong format: the file looks like csv: set data.format: csv and data.csv.delimiter: ";"`},
		{name: "tsv", text: "y\ta\n1\tx\n", code: 2,
			want: "in: wrong format: the file looks like tsv: set data.format: tsv"},
		{name: "JSON", text: "{\"y\": 1, \"a\": 2}\n", code: 2,
			want: "in: wrong format: the file looks like JSON: write it as csv"},
		{name: "text for Vowpal Wabbit", text: "1 |a x y\n-1 |a z\n", code: 2,
			want: "in: wrong format: the file looks like text for Vowpal Wabbit, which is not implemented in this version"},
		{name: "libffm", text: "1 0:12:1 1:5:1\n", code: 2,
			want: "in: wrong format: the file looks like libffm text (field:key:value), which is not implemented in this version"},
		{name: "gzip without suffix", text: "\x1f\x8b\x08\x00\x00\x00\x00\x00", code: 2,
			want: "in: wrong format: the file is compressed by gzip: its name must end in .gz, or unpack it"},
		{name: "zstd without suffix", text: "(\xb5/\xfd\x04\x00", code: 2,
			want: "in: wrong format: the file is compressed by zstd: its name must end in .zst, or unpack it"},
		{name: "a spreadsheet", file: "in.xlsx", text: "PK\x03\x04\x14\x00", code: 2,
			want: "in.xlsx: wrong format: the file is a zip archive, as spreadsheets are: unpack it, or save it as csv"},
		{name: "Parquet", file: "in.parquet", text: "PAR1\x15\x04", code: 2,
			want: "in.parquet: wrong format: the file is Parquet, which is not implemented in this version: write it as csv"},
		{name: "UTF-16", text: "\xff\xfe1\x00 \x001\x00:\x001\x00\n\x00", code: 2,
			want: "in: wrong format: the file is UTF-16: convert it, for example with iconv -f UTF-16 -t UTF-8"},
		{name: "a program", text: "\x7fELF\x02\x01\x01\x00\x00\xff\xfe\x00\x01\n\x00\x00\x9c\n", code: 2,
			want: "in: wrong format: the file is a program"},
		{name: "old Macintosh lines", text: "1 1:1\r0 2:1\r", code: 1,
			want: every + `in:1: a carriage return within the line; the file ends its lines with CR only: convert it, for example with tr '\r' '\n'`},
		{name: "NUL bytes behind", text: "1 1:1\n\x00\x00\x00\x00\x00\x00\x00\x00", code: 1,
			want: every + `in:2: the label "\x00\x00\x00\x00\x00\x00\x00\x00" is not a finite number; the file has NUL bytes: it is damaged, or no text at all`},
		{name: "bzip2", file: "in.bz2", text: "BZh9", code: 2,
			want: "in.bz2: no data: files compressed as .bz2 are not implemented in this version; .gz and .zst are"},
		{name: "a truncated gz", file: "in.gz", text: "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x033T", code: 1,
			want: "job bad has failed: every chunk of pass 0 failed; chunk 0: bad data: in.gz: byte 12: the compressed file is truncated"},
		{name: "no gz at all", file: "in.gz", text: "1 1:1\n0 2:1\n", code: 1,
			want: "job bad has failed: every chunk of pass 0 failed; chunk 0: bad data: in.gz: byte 10: the file, or what follows there, is not compressed as its name says"},
		{name: "no zst at all", file: "in.zst", text: "1 1:1\n0 2:1\n", code: 1,
			want: "job bad has failed: every chunk of pass 0 failed; chunk 0: bad data: in.zst: byte 4: the file, or what follows there, is not compressed as its name says"},
		{name: "an empty file", text: "", code: 2,
			want: "in: no data: every file is empty"},
		{name: "only blank lines", text: "\n  \n\n", code: 2,
			want: "in: no data: there are only blank lines and comments"},
		{name: "only comments", text: "# nothing\n# here\n", code: 2,
			want: "in: no data: there are only blank lines and comments"},
		{name: "a directory of nothing", file: "in/_hidden", text: "1 1:1\n", code: 2,
			want: "in: no data: the directory has no data files"},
		{name: "no label", text: "1:1 2:1\n", code: 1,
			want: every + `in:1: the label is missing: the line starts with "1:1"`},
		{name: "a label of several classes", text: "3 1:1\n", code: 1,
			want: every + `in:1: the label "3" is neither 1 nor 0 nor -1, which are the labels of this model`},
		{name: "a label that is a text", text: "yes 1:1\n", code: 1,
			want: every + `in:1: the label "yes" is not a finite number`},
		{name: "an infinite label", text: "inf 1:1\n", args: []string{"--set", "model.type=linear"}, code: 1,
			want: every + `in:1: the label "inf" is not a finite number`},
		{name: "a negative key", text: "1 -1:1\n", code: 1,
			want: every + `in:1: the key of "-1:1" is not in 0 … 2^64-1`},
		{name: "key 2^64", text: "1 18446744073709551616:1\n", code: 1,
			want: every + `in:1: the key of "18446744073709551616:1" is not in 0 … 2^64-1`},
		{name: "a key that is a text", text: "1 age:1\n", code: 1,
			want: every + `in:1: "age:1" is not of the form key:value`},
		{name: "a fractional key", text: "1 1.5:1\n", code: 1,
			want: every + `in:1: "1.5:1" is not of the form key:value`},
		{name: "blanks around the colon", text: "1 1 : 1\n", code: 1,
			want: every + `in:1: ":" is not of the form key:value`},
		{name: "a value that is a text", text: "1 3:abc\n", code: 1,
			want: every + `in:1: the value "abc" is not a finite number`},
		{name: "no value behind the colon", text: "1 3:\n", code: 1,
			want: every + `in:1: the value "" is not a finite number`},
		{name: "a value that is no number", text: "1 1:1\n1 1:nan\n", code: 1,
			want: every + `in:2: the value "nan" is not a finite number`},
		{name: "an absurd value", text: "1 3:1e30\n", code: 1,
			want: every + `in:1: the value of "3:1e30" is larger than 1e+09 (data.max_value)`},
		{name: "a decimal comma", text: "1 3:0,5\n", code: 1,
			want: every + `in:1: the value "0,5" is not a finite number; write decimals with a point`},
		{name: "a group that is a text", text: "1 qid:x 1:1\n", code: 1,
			want: every + `in:1: "qid:x" is not of the form qid:number`},
		{name: "csv after good records", text: "1 1:1\n1,2,3\n", code: 1,
			want: every + `in:2: the label "1,2,3" is not a finite number`},
		{name: "more bad records than allowed", text: "1 1:1\nx\n1 2:1\nz\n", data: "max_bad_records: 1", code: 1,
			want: every + `in:4: the label "z" is not a finite number (more than 1 in this chunk)`},
	}
}

func badCSV() []wrong {
	return []wrong{
		{name: "libsvm", text: "1 1:1 2:1\n", code: 2,
			want: `in.csv: wrong columns: there is no column "y" among "1 1:1 2:1"; the file looks like libsvm text: set data.format: libsvm`},
		{name: "only a header", text: "y,a\n", code: 2,
			want: "in.csv: no data: every file has nothing but its header"},
		{name: "only a header, of Windows", text: "\xef\xbb\xbfy,a\r\n", code: 2,
			want: "in.csv: no data: every file has nothing but its header"},
		{name: "only blank lines in csv", text: "\n\n", code: 2,
			want: "in.csv: no data: every file has nothing but its header"},
		{name: "semicolons", text: "y;a\n1;x\n", code: 2,
			want: `in.csv: wrong columns: there is no column "y" among "y;a"; the file seems to part its fields by ";": set data.csv.delimiter`},
		{name: "tabs", text: "y\ta\n1\tx\n", code: 2,
			want: `in.csv: wrong columns: there is no column "y" among "y\ta"; the file looks like tsv: set data.format: tsv`},
		{name: "blanks between", text: "y a b\n1 x 2\n", code: 2,
			want: `in.csv: wrong columns: there is no column "y" among "y a b"; the file seems to part its fields by blanks: write commas instead`},
		{name: "csv as tsv", text: "y,a\n1,x\n", args: []string{"--set", "data.format=tsv"}, code: 2,
			want: `in.csv: wrong columns: there is no column "y" among "y,a"; the file looks like csv: set data.format: csv`},
		{name: "another delimiter than said", text: "y,a\n1,x\n", data: `csv: {delimiter: ";"}`, code: 2,
			want: `in.csv: wrong columns: there is no column "y" among "y,a"; the file seems to part its fields by ",": set data.csv.delimiter`},
		{name: "csv in UTF-16", text: "\xff\xfey\x00,\x00a\x00\n\x00", code: 2,
			want: `in.csv: wrong columns: there is no column "y" among "\xff\xfey\x00", "\x00a\x00"; the file is UTF-16: convert it, for example with iconv -f UTF-16 -t UTF-8`},
		{name: "JSON as csv", text: "{\"y\":1,\"a\":2}\n", code: 2,
			want: `in.csv: wrong columns: the first line: something follows the closing quote in "\"a\":2}"; a quote within quotes is written twice; the file looks like JSON: write it as csv`},
		{name: "a program as csv", text: "\x7fELF\x02\x01\x01\x00\n", code: 2,
			want: `in.csv: wrong columns: there is no column "y" among "\x7fELF\x02\x01\x01\x00"; the file is a program`},
		{name: "gzip without suffix as csv", text: "\x1f\x8b\x08\x00\r\x00\n", code: 2,
			want: "in.csv: wrong columns: the first line: a carriage return within the line; the file is compressed by gzip: its name must end in .gz, or unpack it"},
		{name: "old Macintosh csv", text: "y,a\r1,x\r", code: 2,
			want: `in.csv: wrong columns: the first line: a carriage return within the line; the file ends its lines with CR only: convert it, for example with tr '\r' '\n'`},
		{name: "the label in capitals", text: "Y,a\n1,x\n", code: 2,
			want: `in.csv: wrong columns: there is no column "y" among "Y", "a"; did you mean "Y"?`},
		{name: "the label misspelt", text: "clicked,a\n1,x\n", args: []string{"--set", "data.label=clickd"}, code: 2,
			want: `in.csv: wrong columns: there is no column "clickd" among "clicked", "a"; did you mean "clicked"?`},
		{name: "no such label", text: "a,b\n1,x\n", code: 2,
			want: `in.csv: wrong columns: there is no column "y" among "a", "b"`},
		{name: "no header", text: "1,2\n0,3\n", code: 2,
			want: `in.csv: wrong columns: there is no column "y" among "1", "2"; if that is no header set data.csv.header: false`},
		{name: "names in Latin-1", text: "y,caf\xe9\n1,3\n", more: "features: [{name: café, type: numeric}]\n", code: 2,
			want: "in.csv: wrong columns: there is no column \"café\" among \"y\", \"caf\\xe9\"; the names are not in UTF-8, as the spec is: convert the file, for example with iconv -f LATIN1 -t UTF-8"},
		{name: "two columns of one name", text: "y,a,a\n1,x,2\n", code: 2,
			want: `in.csv: wrong columns: more than one is called "a"; rename all but one`},
		{name: "no such weight", text: "y,a\n1,x\n", data: "weight: w", code: 2,
			want: `in.csv: wrong columns: there is no column "w" among "y", "a"`},
		{name: "no such feature", text: "y,age\n1,3\n", more: "features: [{name: agee, type: numeric}]\n", code: 2,
			want: `in.csv: wrong columns: there is no column "agee" among "y", "age"; did you mean "age"?`},
		{name: "too many fields", text: "y,a\n1,x,3\n", code: 1,
			want: every + `in.csv:2: 3 fields instead of 2; a field with "," in it must stand in quotes`},
		{name: "too few fields", text: "y,a,b\n1,x\n", code: 1,
			want: every + "in.csv:2: 2 fields instead of 3"},
		{name: "a quote that is not closed", text: "y,a\n1,\"x\n0,z\n", code: 1,
			want: every + "in.csv:2: the quote of \"\\\"x\" is not closed in its line; line breaks in quotes need `chunk: file`"},
		{name: "a quote that is never closed", text: "y,a\n1,\"x\n0,z\n", data: "chunk: file", code: 1,
			want: "job bad has failed: every chunk of pass 0 failed; chunk 0: bad data: in.csv:2: a quote is opened in this record that is not closed before the file's end, or within 64 MiB"},
		{name: "a quoted line break", text: "y,a\n1,\"x\nz\"\n", code: 1,
			want: every + "in.csv:2: the quote of \"\\\"x\" is not closed in its line; line breaks in quotes need `chunk: file`"},
		{name: "text behind a quote", text: "y,a\n1,\"x\"z\n", code: 1,
			want: every + `in.csv:2: something follows the closing quote in "\"x\"z"; a quote within quotes is written twice`},
		{name: "a quote in the header", text: "\"y,a\n1,x\n", code: 2,
			want: "in.csv: wrong columns: the first line: the quote of \"\\\"y,a\" is not closed in its line; line breaks in quotes need `chunk: file`"},
		{name: "a label that is yes", text: "y,a\nyes,x\nno,z\n", code: 1,
			want: every + `in.csv:2: the label "yes" (column "y") is neither a finite number nor in data.csv.labels, which gives texts numbers, like {yes: 1, no: 0}`},
		{name: "a label of three classes", text: "y,a\n1,x\n2,z\n", code: 1,
			want: every + `in.csv:3: the label "2" (column "y") is neither 1 nor 0 nor -1, which are the labels of this model; data.csv.labels translates others`},
		{name: "an empty label", text: "y,a\n,x\n", code: 1,
			want: every + `in.csv:2: the label (column "y") is missing`},
		{name: "a label that is nan", text: "y,a\nnan,x\n", code: 1,
			want: every + `in.csv:2: the label "nan" (column "y") is neither a finite number nor in data.csv.labels, which gives texts numbers, like {yes: 1, no: 0}`},
		{name: "a negative weight", text: "y,w\n1,-1\n", data: "weight: w", code: 1,
			want: every + `in.csv:2: the weight "-1" (column "w") is not a number from 0 on`},
		{name: "an empty weight", text: "y,w\n1,\n", data: "weight: w", code: 1,
			want: every + `in.csv:2: the weight (column "w") is missing`},
		{name: "a text among numbers", text: "y,a\n1,3\n0,unknown\n", more: "features: [{name: a, type: numeric}]\n", code: 1,
			want: every + `in.csv:3: "unknown" (column "a") is not a finite number; if it means that there is none, list it in data.csv.missing; if the column has texts, give it type: categorical`},
		{name: "a decimal comma in csv", text: "y;a\n1;3,5\n", data: `csv: {delimiter: ";"}`, more: "features: [{name: a, type: numeric}]\n", code: 1,
			want: every + `in.csv:2: "3,5" (column "a") is not a finite number; write decimals with a point`},
		{name: "an absurd number", text: "y,a\n1,1e30\n", more: "features: [{name: a, type: numeric}]\n", code: 1,
			want: every + `in.csv:2: "1e30" (column "a") is larger than 1e+09 (data.max_value); if the column is right, give it transform: standard or log1p, or type: categorical`},
		{name: "a carriage return within", text: "y,a\n1,x\rz\n", code: 1,
			want: every + "in.csv:2: a carriage return within the line"},
		{name: "a truncated csv.gz", file: "in.csv.gz", text: "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x033T", code: 1,
			want: "job bad has failed: every chunk of pass 0 failed; chunk 0: bad data: in.csv.gz: byte 12: the compressed file is truncated"},
	}
}
