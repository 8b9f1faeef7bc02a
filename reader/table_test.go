package reader

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/stretchr/testify/require"
)

// withColumns plans csv files, or the format that is given.
func withColumns(tb testing.TB, chunk int64, c Columns, paths ...string) *Plan {
	tb.Helper()
	p, err := NewColumnsPlan(paths, CSV, chunk, c)
	require.NoError(tb, err)
	return p
}

// parseCSV reads a text as one file and gives its records as lines
// "label [w weight] [qid:group] key:value …", each key written as the name
// that it is the hash of.
func parseCSV(t *testing.T, format, file string, c Columns, o Options, names ...string) ([]string, error) {
	t.Helper()
	paths := write(t, file)
	p, err := NewColumnsPlan(paths, format, math.MaxInt64, c)
	if err != nil {
		return nil, err
	}
	list, err := all(p, o)
	for i := range list {
		for _, n := range names {
			list[i] = strings.ReplaceAll(list[i], fmt.Sprintf(" %d:", xxhash.Sum64String(n)), " "+n+":")
		}
	}
	return list, err
}

var plain = Columns{Header: true, Label: "y"}

// TestCSVFields: what a field is, in csv and tsv.
func TestCSVFields(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ format, text, want string }{
		"plain":                 {CSV, "y,a\n1,x\n", "1 a=x:1"},
		"no final newline":      {CSV, "y,a\n1,x", "1 a=x:1"},
		"CRLF":                  {CSV, "y,a\r\n1,x\r\n", "1 a=x:1"},
		"a byte order mark":     {CSV, "\xef\xbb\xbfy,a\n1,x\n", "1 a=x:1"},
		"blanks around":         {CSV, " y , a\t\n 1,\t x  y \n", "1 a=x  y:1"},
		"blank lines":           {CSV, "\n \t\ny,a\n\n1,x\n  \r\n", "1 a=x:1"},
		"quotes":                {CSV, `"y","a"` + "\n" + `"1"," x,y "` + "\n", "1 a= x,y :1"},
		"blanks before a quote": {CSV, "y,a\n1 ,  \" x\"  \n", "1 a= x:1"},
		"doubled quotes":        {CSV, "y,a\n1,\"a\"\"b\"\"\"\n", `1 a=a"b":1`},
		"only doubled quotes":   {CSV, "y,a\n1,\"\"\"\"\n", `1 a=":1`},
		"a quoted number":       {CSV, "y,a\n\"1\",\"2.5\"\n", "1 a:2.5"},
		"an unquoted quote":     {CSV, "y,a\n1,5\" disk\n", `1 a=5" disk:1`},
		"a quoted line break":   {CSV, "y,a\n1,\"x\ny\"\n", "1 a=x\ny:1"},
		"quoted CRLF":           {CSV, "y,a\n1,\"x\r\ny\"\r\n", "1 a=x\r\ny:1"},
		"a quoted empty field":  {CSV, "y,a\n1,\"\"\n", "1"},
		"Latin-1":               {CSV, "y,a\n1,caf\xe9\n", "1 a=caf\xe9:1"},
		"UTF-8":                 {CSV, "y,naïve\n1,café\n", "1 naïve=café:1"},
		"NUL":                   {CSV, "y,a\n1,\x00\n", "1 a=\x00:1"},
		"an empty field":        {CSV, "y,a\n1,\n", "1"},
		"numbers":               {CSV, "y,a\n-1,-1.5e2\n", "-1 a:-150"},
		"nearly a number":       {CSV, "y,a\n1,1.5.1\n", "1 a=1.5.1:1"},
		"nan is a text":         {CSV, "y,a\n1,nan\n", "1 a=nan:1"},
		"zero is present":       {CSV, "y,a\n1,0\n", "1 a:0"},
		"tsv":                   {TSV, "y\ta\n1\t x y \n", "1 a=x y:1"},
		"tsv, empty fields":     {TSV, "a\ty\n\t1\n", "1"},
		"tsv has no quotes":     {TSV, "y\ta\n1\t\"x\n", `1 a="x:1`},
		"a column without name": {CSV, ",y\n7,1\n", "1 c1:7"},
	} {
		got, err := parseCSV(t, tc.format, tc.text, plain, Options{Batch: 3}, "a", "c1", "naïve="+"café",
			"a= x,y ", "a= x", "a=x  y", "a=x y", "a=x", `a=a"b"`, `a="`, `a=5" disk`, "a=x\ny", "a=x\r\ny",
			"a=caf\xe9", "a=\x00", "a=1.5.1", "a=nan", `a="x`)
		require.NoError(t, err, name)
		require.Equal(t, []string{tc.want}, got, name)
	}
}

// TestCSVRefused: the message for each kind of broken line, with its place.
func TestCSVRefused(t *testing.T) {
	t.Parallel()
	c := Columns{Header: true, Label: "y", Weight: "w", Features: []Feature{
		{Name: "n", Kind: Numeric}, {Name: "l", Column: "n", Kind: Numeric, Transform: Log1p},
		{Name: "b", Column: "m", Kind: Numeric, Transform: Bucket, Bounds: []float64{1}}}}
	const noNumber = "; if it means that there is none, list it in data.csv.missing; if the column has texts, give it type: categorical"
	for line, want := range map[string]string{
		"1,1,2":              `3 fields instead of 4`,
		"1,1,2,3,4":          `5 fields instead of 4; a field with "," in it must stand in quotes`,
		"1,1,2,3,":           `5 fields instead of 4; a field with "," in it must stand in quotes`,
		"# a comment":        `1 fields instead of 4`,
		"x,1,2,3":            `the label "x" (column "y") is neither a finite number nor in data.csv.labels, which gives texts numbers, like {yes: 1, no: 0}`,
		",1,2,3":             `the label (column "y") is missing`,
		"2,1,2,3":            `the label "2" (column "y") is neither 1 nor 0 nor -1, which are the labels of this model; data.csv.labels translates others`,
		"1,-1,2,3":           `the weight "-1" (column "w") is not a number from 0 on`,
		"1,nan,2,3":          `the weight "nan" (column "w") is not a number from 0 on`,
		"1,inf,2,3":          `the weight "inf" (column "w") is not a number from 0 on`,
		"1,,2,3":             `the weight (column "w") is missing`,
		"1,1,two,3":          `"two" (column "n") is not a finite number` + noNumber,
		"1,1,nan,3":          `"nan" (column "n") is not a finite number` + noNumber,
		"1,1,1e99,3":         `"1e99" (column "n") is not a finite number`,
		"1,1,1,0x1":          `"0x1" (column "m") is not a finite number` + noNumber,
		"1,1,2\r,3":          "a carriage return within the line",
		`1,1,"2",3"`:         `"3\"" (column "m") is not a finite number` + noNumber,
		`1,1,"2"x,3`:         `something follows the closing quote in "\"2\"x,3"; a quote within quotes is written twice`,
		`1,1,"2,3`:           "the quote of \"\\\"2,3\" is not closed in its line; line breaks in quotes need `chunk: file`",
		"1,1,2," + long(60):  `"` + long(40) + `"… (column "m") is not a finite number` + noNumber,
		`1,1,"-2,500",3`:     `"-2,500" (column "n") is not a finite number; write no separators between thousands, and decimals with a point`,
		`1,1,"1,234,567.8",`: `"1,234,567.8" (column "n") is not a finite number; write no separators between thousands, and decimals with a point`,
		`1,1,"2,5,1",3`:      `"2,5,1" (column "n") is not a finite number; write decimals with a point`,
		`1,1,"2,5",3`:        `"2,5" (column "n") is not a finite number; write decimals with a point`,
	} {
		text := "y,w,n,m\n1,1,2,3\n" + line + "\n0,1,2,3\n"
		p := withColumns(t, 1<<20, c, write(t, text)...)
		_, err := all(p, Options{Batch: 2, Labels: LabelBinary})
		require.ErrorIs(t, err, ErrBadData, line)
		require.EqualError(t, err, "chunk 0: reader: bad record: "+p.Files[0].Path+":3: "+want)
		got, err := all(p, Options{Batch: 2, Labels: LabelBinary, MaxBad: 1})
		require.NoError(t, err, line)
		require.Len(t, got, 2, line)
	}
}

func long(n int) string { return strings.Repeat("z", n) }

// TestFeatures: keys and values of each kind.
func TestFeatures(t *testing.T) {
	t.Parallel()
	text := "y,age,income,site,hist,hour\n" +
		"yes,20,99,a.org,u|v||u,3\n" +
		"no,?,-9,?,,?\n"
	for name, tc := range map[string]struct {
		f    Feature
		want [2]string
	}{
		"numeric":                  {Feature{Name: "age", Kind: Numeric}, [2]string{" age:20", ""}},
		"numeric, filled":          {Feature{Name: "age", Kind: Numeric, Missing: "7"}, [2]string{" age:20", " age:7"}},
		"another name":             {Feature{Name: "x", Column: "age", Kind: Numeric}, [2]string{" x:20", ""}},
		"log1p":                    {Feature{Name: "income", Kind: Numeric, Transform: Log1p}, [2]string{" income:4.6051702", " income:-2.3025851"}},
		"standard":                 {Feature{Name: "age", Kind: Numeric, Transform: Standard, Mean: 30, Stddev: 4, Missing: "30"}, [2]string{" age:-2.5", " age:0"}},
		"bucket":                   {Feature{Name: "age", Kind: Numeric, Transform: Bucket, Bounds: []float64{10, 20, 30}}, [2]string{" age=2:1", ""}},
		"bucket, filled":           {Feature{Name: "age", Kind: Numeric, Transform: Bucket, Bounds: []float64{10, 20, 30}, Missing: "9.9"}, [2]string{" age=2:1", " age=0:1"}},
		"categorical":              {Feature{Name: "site", Kind: Categorical}, [2]string{" site=a.org:1", ""}},
		"categorical, filled":      {Feature{Name: "site", Kind: Categorical, Missing: "none"}, [2]string{" site=a.org:1", " site=none:1"}},
		"a number as a category":   {Feature{Name: "hour", Kind: Categorical}, [2]string{" hour=3:1", ""}},
		"list":                     {Feature{Name: "hist", Kind: List, Separator: "|"}, [2]string{" hist=u:1 hist=v:1 hist=u:1", ""}},
		"list, mean":               {Feature{Name: "hist", Kind: List, Separator: "|", PoolMean: true}, [2]string{" hist=u:0.33333334 hist=v:0.33333334 hist=u:0.33333334", ""}},
		"list, long separator":     {Feature{Name: "hist", Kind: List, Separator: "||", PoolMean: true}, [2]string{" hist=u|v:0.5 hist=u:0.5", ""}},
		"cross of columns":         {Feature{Name: "c", Kind: Cross, Parts: []string{"site", "hour"}}, [2]string{" site=a.org^hour=3:1", ""}},
		"cross with a bucket":      {Feature{Name: "c", Kind: Cross, Parts: []string{"b", "site"}}, [2]string{" b=1^site=a.org:1", ""}},
		"cross with a filled part": {Feature{Name: "c", Kind: Cross, Parts: []string{"f", "k"}}, [2]string{" f=a.org^k=3:1", " f=none^k=0:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			helpers := []Feature{ // what crosses name
				{Name: "b", Column: "age", Kind: Numeric, Transform: Bucket, Bounds: []float64{15}},
				{Name: "f", Column: "site", Kind: Categorical, Missing: "none"},
				{Name: "k", Column: "hour", Kind: Categorical, Missing: "0"},
			}
			c := Columns{Header: true, Label: "y", Missing: []string{"?"}, Labels: map[string]float32{"yes": 1, "no": 0},
				Features: append([]Feature{tc.f}, helpers...)}
			got, err := parseCSV(t, CSV, text, c, Options{Batch: 8, Labels: LabelBinary}, "age", "x", "income", "age=2", "age=0",
				"site=a.org", "site=none", "hour=3", "hist=u", "hist=v", "hist=u|v", "site=a.org^hour=3", "b=1^site=a.org",
				"f=a.org^k=3", "f=none^k=0", "b=1", "f=a.org", "f=none", "k=3", "k=0")
			require.NoError(t, err)
			require.Equal(t, []string{"1" + tc.want[0] + " b=1:1 f=a.org:1 k=3:1", "0" + tc.want[1] + " f=none:1 k=0:1"}, got)
		})
	}
}

// TestDirectoryOfSpark: parts with a header each, in a directory with files
// that are no data.
func TestDirectoryOfSpark(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"_SUCCESS": "", ".part-00000.csv.crc": "crc\x00", "part-00000.csv": "y,a\n1,1\n", "part-00001.csv": "y,a\n",
		"part-00002.csv.gz": string(squeeze(t, ".gz", "y,a\n0,2\n")), "_temporary/part-00000.csv": "y,a\n7,7\n", "part-00003.csv": "",
	} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	}
	p := withColumns(t, 4, plain, dir)
	got, err := all(p, Options{Batch: 3})
	require.NoError(t, err)
	a := xxhash.Sum64String("a")
	require.Equal(t, []string{fmt.Sprintf("1 %d:1", a), fmt.Sprintf("0 %d:2", a)}, got)
	require.Len(t, p.Skipped, 3)
	require.Equal(t, p.Files[2:], p.Unsplit())
	stored, err := ParseManifest(p.Manifest())
	require.NoError(t, err)
	require.Equal(t, p.Unsplit(), stored.Unsplit())
	span, err := stored.Span(0)
	require.NoError(t, err)
	require.Equal(t, Span{File: p.Files[0].Path, End: 4}, span)
	_, err = stored.Open(t.Context(), 0, Options{Batch: 1})
	require.ErrorContains(t, err, "columns")
}

// TestFeatureKeysArePinned: the worked numbers of docs/formats.md; models that
// were trained have them inside.
func TestFeatureKeysArePinned(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/formats.md")
	require.NoError(t, err)
	c := Columns{Header: true, Label: "y", Features: []Feature{
		{Name: "age", Kind: Numeric}, {Name: "site", Kind: Categorical},
		{Name: "hours", Kind: Numeric, Transform: Bucket, Bounds: []float64{35, 41}},
		{Name: "site_x_hour", Kind: Cross, Parts: []string{"site", "hours"}}}}
	p := withColumns(t, 100, c, write(t, "y,age,site,hours\n1,39,a.org,40\n")...)
	for bits, column := range map[int]int{0: 2, 20: 3} {
		r, err := p.Open(t.Context(), 0, Options{Batch: 1, Bits: bits})
		require.NoError(t, err)
		defer r.Close()
		var b Batch
		require.NoError(t, r.Next(&b))
		for i, text := range []string{"age", "site=a.org", "hours=1", "site=a.org^hours=1"} {
			_, row, ok := strings.Cut(string(page), "| `"+text+"` |")
			require.True(t, ok, text)
			cells := strings.Split(row, "|")
			require.Equal(t, strings.TrimSpace(cells[column-2]), fmt.Sprint(b.Keys[i]), text)
		}
		require.Equal(t, []float32{39, 1, 1, 1}, b.Values)
	}
}

// TestWeightsAndGroups: columns of their own, kept in the shuffle too.
func TestWeightsAndGroups(t *testing.T) {
	t.Parallel()
	c := Columns{Header: true, Label: "y", Weight: "w", Group: "g", Features: []Feature{{Name: "n", Kind: Numeric}}}
	var text strings.Builder
	text.WriteString("n,g,w,y\n")
	for i := range 50 {
		fmt.Fprintf(&text, "%d,u%d,%d,1\n", i, i%3, i%5)
	}
	text.WriteString("50,,0.5,0\n")
	p := withColumns(t, 1<<20, c, write(t, text.String())...)
	for _, shuffle := range []bool{false, true} {
		r, err := p.Open(t.Context(), 0, Options{Batch: 7, Shuffle: shuffle, Seed: 3})
		require.NoError(t, err)
		defer r.Close()
		var b Batch
		seen := 0
		for last := false; !last; last = b.Last {
			require.NoError(t, r.Next(&b))
			require.Len(t, b.Weights, b.Records())
			require.Len(t, b.Groups, b.Records())
			for i := range b.Records() {
				_, v := b.Record(i)
				n := int(v[0])
				seen++
				if n == 50 {
					require.Equal(t, float32(0.5), b.Weights[i])
					require.Zero(t, b.Groups[i])
					continue
				}
				require.Equal(t, float32(n%5), b.Weights[i])
				require.Equal(t, xxhash.Sum64String(fmt.Sprintf("u%d", n%3)), b.Groups[i])
			}
		}
		require.Equal(t, 51, seen)
	}
}

// TestWithoutHeader: names from the spec, or c1, c2, …; comments are passed over.
func TestWithoutHeader(t *testing.T) {
	t.Parallel()
	got, err := parseCSV(t, CSV, "|comment\n1,7\n|, \n0,8\n", Columns{Names: []string{"y", "n"}, Label: "y", Comment: "|"},
		Options{Batch: 3}, "n")
	require.NoError(t, err)
	require.Equal(t, []string{"1 n:7", "0 n:8"}, got)
	got, err = parseCSV(t, CSV, "|comment\n1,7\n0,8\n", Columns{Label: "c1", Comment: "|"}, Options{Batch: 3}, "c2")
	require.NoError(t, err)
	require.Equal(t, []string{"1 c2:7", "0 c2:8"}, got)
	got, err = parseCSV(t, CSV, "\xef\xbb\xbf1,7\n", Columns{Names: []string{"y", "n"}, Label: "y"}, Options{Batch: 3}, "n")
	require.NoError(t, err)
	require.Equal(t, []string{"1 n:7"}, got)
}

// TestWrongColumns: what is wrong with a file's columns is found when it is
// planned, and is a mistake in the configuration.
func TestWrongColumns(t *testing.T) {
	t.Parallel()
	feature := func(f Feature) Columns { return Columns{Header: true, Label: "y", Features: []Feature{f}} }
	for name, tc := range map[string]struct {
		text string
		c    Columns
		want string
	}{
		"no label":           {"a,b\n1,2\n", plain, `there is no column "y" among "a", "b"`},
		"libsvm given":       {"1 1:1 2:1\n", plain, `there is no column "y" among "1 1:1 2:1"; the file looks like libsvm text: set data.format: libsvm`},
		"another delimiter":  {"y;a\n1;2\n", plain, `there is no column "y" among "y;a"; the file seems to part its fields by ";": set data.csv.delimiter`},
		"no weight":          {"y,a\n", Columns{Header: true, Label: "y", Weight: "w"}, `there is no column "w" among "y", "a"`},
		"no such feature":    {"y,a\n", feature(Feature{Name: "b", Kind: Numeric}), `there is no column "b" among "y", "a"`},
		"no part of a cross": {"y,a\n", feature(Feature{Name: "x", Kind: Cross, Parts: []string{"a", "b"}}), `there is no column "b" among "y", "a"`},
		"twice":              {"y,a,a\n", plain, `more than one is called "a"; rename all but one`},
		"names and header":   {"y,a\n", Columns{Header: true, Names: []string{"y", "a"}}, "files with a header name their columns themselves"},
		"old Mac lines":      {"y,a\r1,2\r", plain, `the first line: a carriage return within the line; the file ends its lines with CR only`},
		"binary":             {"\x7fELF\x02\x01\n\x00\n", plain, `there is no column "y" among "\x7fELF\x02\x01"; the file is a program`},
		"UTF-16":             {"\xff\xfey\x00,\x00a\x00\n\x00", plain, "the file is UTF-16: convert it"},
		"never closed":       {"y,\"a\n1,2\n", plain, "the first line: a quote in it is never closed"},
		"no end":             {strings.Repeat("y", maxHeader+1), plain, "the first line does not end within 1 MiB"},
		"a delimiter":        {"y,a\n", Columns{Delimiter: 'e'}, `'e' cannot part fields`},
		"deviation":          {"y,a\n", feature(Feature{Name: "a", Kind: Numeric, Transform: Standard}), "the deviation must be above 0"},
		"bounds":             {"y,a\n", feature(Feature{Name: "a", Kind: Numeric, Transform: Bucket, Bounds: []float64{2, 1}}), "must be ascending"},
		"separator":          {"y,a\n", feature(Feature{Name: "a", Kind: List}), "a list needs a separator"},
		"parts":              {"y,a\n", feature(Feature{Name: "a", Kind: Cross, Parts: []string{"y"}}), "at least two parts"},
		"missing value":      {"y,a\n", feature(Feature{Name: "a", Kind: Numeric, Missing: "x"}), `"x" is not a finite number`},
	} {
		_, err := NewColumnsPlan(write(t, tc.text), CSV, math.MaxInt64, tc.c)
		require.ErrorIs(t, err, ErrColumns, name)
		require.ErrorContains(t, err, tc.want, name)
	}
	_, err := NewColumnsPlan(write(t, "y,a\n"), Libsvm, 1, plain)
	require.ErrorContains(t, err, `the format "libsvm" is not known, or has no columns`)
	_, err = NewColumnsPlan(write(t, "y,a\n", "\n\ny,a"), CSV, 1, plain)
	require.ErrorIs(t, err, ErrNoData)
	require.ErrorContains(t, err, "every file has nothing but its header")
	_, err = NewColumnsPlan(nil, CSV, 1, plain)
	require.ErrorIs(t, err, ErrNoData)
}

// TestQuoteNeverClosed: how many records an open quote has swallowed is
// unknown, so no number of bad records is enough to pass over it.
func TestQuoteNeverClosed(t *testing.T) {
	t.Parallel()
	p := withColumns(t, math.MaxInt64, plain, write(t, "y,a\n1,x\n1,\"open\n"+strings.Repeat("0,x\n", 1000))...)
	_, err := all(p, Options{Batch: 2, MaxBad: 1000})
	require.ErrorIs(t, err, ErrBadData)
	require.EqualError(t, err, "chunk 0: reader: bad data: "+p.Files[0].Path+
		":3: a quote is opened in this record that is not closed before the file's end, or within 64 MiB")
}

// census writes rows lines like those of the UCI adult file.
func census(tb testing.TB, rows int) (string, Columns) {
	tb.Helper()
	var s strings.Builder
	s.WriteString("age,work,edu,gain,hours,y\n")
	for i := range rows {
		fmt.Fprintf(&s, "%d, Private-%d, \"Some-college\", %d, %d.5, %d\n", i%80, i%9, i*i%99999, i%60, i%2)
	}
	path := filepath.Join(tb.TempDir(), "census.csv")
	require.NoError(tb, os.WriteFile(path, []byte(s.String()), 0o600))
	return path, Columns{Header: true, Label: "y", Weight: "age", Features: []Feature{
		{Name: "age", Kind: Numeric, Transform: Standard, Mean: 38, Stddev: 13}, {Name: "work", Kind: Categorical},
		{Name: "edu", Kind: Categorical}, {Name: "gain", Kind: Numeric, Transform: Log1p}, {Name: "hours", Kind: Numeric},
		{Name: "both", Kind: Cross, Parts: []string{"work", "edu"}}}}
}

// TestCSVAllocatesNothing once memory has grown to its size.
func TestCSVAllocatesNothing(t *testing.T) {
	path, c := census(t, 40000)
	for _, shuffle := range []bool{false, true} {
		r, err := withColumns(t, 1<<40, c, path).Open(t.Context(), 0, Options{Batch: 64, Shuffle: shuffle})
		require.NoError(t, err)
		defer r.Close()
		var b Batch
		for range 20 {
			require.NoError(t, r.Next(&b))
		}
		require.Zero(t, testing.AllocsPerRun(100, func() { require.NoError(t, r.Next(&b)) }))
	}
}

// BenchmarkCSV reads a file like a census.
func BenchmarkCSV(b *testing.B) {
	path, c := census(b, 20000)
	p := withColumns(b, 1<<40, c, path)
	b.SetBytes(p.Files[0].Size)
	for b.Loop() {
		r, err := p.Open(b.Context(), 0, Options{Batch: 256, Bits: 20})
		require.NoError(b, err)
		var batch Batch
		for !batch.Last {
			require.NoError(b, r.Next(&batch))
		}
		require.NoError(b, r.Close())
		batch.Last = false
	}
	b.ReportMetric(20000*float64(b.N)/b.Elapsed().Seconds(), "records/s")
}
