package reader

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLooksLike: what is said of a file that is no text of its format, and that
// nothing is said of one that is.
func TestLooksLike(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ format, head, want string }{
		{Libsvm, "y,a\n1,x\n", "looks like csv: set data.format: csv"},
		{Libsvm, "1,0.5,2\n", "looks like csv: set data.format: csv"},
		{Libsvm, "y;a;b,c\n", `looks like csv: set data.format: csv and data.csv.delimiter: ";"`},
		{Libsvm, "y\ta\n", "looks like tsv: set data.format: tsv"},
		{Libsvm, "\ufeff# made by hand\n\n{\"y\": 1}\n", "looks like JSON"},
		{Libsvm, "1 |a x y:2\n", "looks like text for Vowpal Wabbit"},
		{Libsvm, "1 0:12:1 1:5:1\n", "looks like libffm text"},
		{Libsvm, "\x1f\x8b\x08\x00", "its name must end in .gz"},
		{Libsvm, "\x28\xb5\x2f\xfd", "its name must end in .zst"},
		{Libsvm, "PAR1\x15", "is Parquet"},
		{Libsvm, "PK\x03\x04", "is a zip archive"},
		{Libsvm, "\xff\xfe1\x00", "is UTF-16"},
		{Libsvm, "1 1:1\n\x00\x00\x00", "has NUL bytes"},
		{Libsvm, "1 1:1\r0 2:1\r", "ends its lines with CR only"},
		{CSV, "1 1:1 2:1\n", "looks like libsvm text: set data.format: libsvm"},
		{CSV, "y;a\n", `seems to part its fields by ";"`},
		{CSV, "y\ta\n", "looks like tsv: set data.format: tsv"},
		{TSV, "y,a\n", "looks like csv: set data.format: csv"},
		{TSV, "y;a\n", `seems to part its fields by ";"`},
		{CSV, "y a b\n", "by blanks"},
		{CSV, "1 |a x\n", "Vowpal"},
		{CSV, "[1, 2]\n", "JSON"},
		// Of these nothing is clear.
		{Libsvm, "", ""},
		{Libsvm, "# comment, with a comma\n1 1:1\n", ""},
		{Libsvm, "1 1:1 2:1\r\n", ""},
		{Libsvm, "1\n", ""},
		{Libsvm, "1 2 3\n", ""},
		{Libsvm, "1,2 3:1\n", ""},
		{Libsvm, "oops\n", ""},
		{CSV, "y,a\n", ""},
		{CSV, "y\n", ""},
		{CSV, "the label\n", ""},
		{CSV, "y,a b c;d\n", ""},
		{TSV, "y\ta,b\n", ""},
	} {
		delimiter := map[string]byte{CSV: ',', TSV: '\t'}[tc.format]
		got := looksLike(tc.format, delimiter, []byte(tc.head))
		if tc.want == "" {
			require.Empty(t, got, "%s %q", tc.format, tc.head)
		}
		require.Contains(t, got, tc.want, "%s %q", tc.format, tc.head)
	}
}

// TestCheck: what is clearly no libsvm text makes no job; what may be, does.
func TestCheck(t *testing.T) {
	t.Parallel()
	check := func(texts ...string) error {
		p, err := NewPlan(write(t, texts...), Libsvm, 100)
		require.NoError(t, err)
		return p.Check()
	}
	long := strings.Repeat(" 1:1", sample)
	for _, texts := range [][]string{{"1 1:1\n"}, {"1 1:1"}, {"\n\n", "1 1:1"}, {"1" + long + "\n"}, {"# c\n\n1" + long},
		{"oops\n"}, {"1 1:nan\n"}, {strings.Repeat("\n", 2*sample)}, {"\ufeff1 1:1\n"}} {
		require.NoError(t, check(texts...), "%.20q", texts)
	}
	require.ErrorIs(t, check("1 1:1\n", "y,a\n1,x\n"), ErrFormat)
	require.ErrorContains(t, check("# c\n\ny,a"), "the file looks like csv: set data.format: csv")
	require.ErrorIs(t, check("\n", "# nothing\n  \n"), ErrNoData)
	p, err := NewColumnsPlan(write(t, "y,a\n1,x\n"), CSV, 100, Columns{Header: true})
	require.NoError(t, err)
	require.NoError(t, p.Check())
}

// TestBadRecordLooks: a record that cannot be read says what the file seems to
// be, once it is clear.
func TestBadRecordLooks(t *testing.T) {
	t.Parallel()
	p := plan(t, 1000, write(t, "y,a\n1,x\n")...)
	_, err := all(p, Options{Batch: 2})
	require.EqualError(t, err, "chunk 0: reader: bad record: "+p.Files[0].Path+`:1: the label "y,a" is not a finite number; the file looks like csv: set data.format: csv`)
	p = plan(t, 1000, write(t, "1 1:1\n1,x\n")...)
	_, err = all(p, Options{Batch: 2})
	require.EqualError(t, err, "chunk 0: reader: bad record: "+p.Files[0].Path+`:2: the label "1,x" is not a finite number`)
}

// TestByteOrderMark: what some programs put before UTF-8 is no part of a record,
// also where files were put together.
func TestByteOrderMark(t *testing.T) {
	t.Parallel()
	for _, chunk := range []int64{1, 4, 1000} {
		got, err := all(plan(t, chunk, write(t, "\ufeff1 1:1\n\ufeff0 2:1\n\ufeff\n")...), Options{Batch: 1})
		require.NoError(t, err)
		require.Equal(t, []string{"1 1:1", "0 2:1"}, got)
	}
}
