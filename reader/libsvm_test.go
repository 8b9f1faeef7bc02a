package reader

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// parseLine parses one line on its own.
func parseLine(line string, labels Labels) (string, error) {
	b := append([]byte(line+"\n"), make([]byte, slack)...)
	p := parser{mask: math.MaxUint64, labels: labels}
	keys, values := make([]uint64, 100), make([]float32, 100)
	next, n, st := p.record(b, 0, keys, values, 0)
	if next != len(line)+1 {
		return "", fmt.Errorf("the next line starts at %d", next)
	}
	switch st {
	case good:
		var s strings.Builder
		fmt.Fprint(&s, p.label)
		if p.hasGroup {
			fmt.Fprintf(&s, " qid:%d", p.group)
		}
		for i := range n {
			fmt.Fprintf(&s, " %d:%v", keys[i], values[i])
		}
		return s.String(), nil
	case blank:
		return "", nil
	case bad:
		return "", errors.New(p.reason(b))
	default:
		return "", errors.New("full")
	}
}

func TestGoodLines(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"1 3:1 11:1":        "1 3:1 11:1",
		"-1 3:1 11:1 ":      "-1 3:1 11:1", // a9a ends its lines with a blank
		"+1 3:1":            "1 3:1",
		"0 1:1":             "0 1:1",
		"1":                 "1",
		"1 ":                "1",
		"1.0 1:1":           "1 1:1",
		"1e0 1:1":           "1 1:1",
		"-1.5 1:1":          "-1.5 1:1",
		" \t1 \t 2:1\t3:1 ": "1 2:1 3:1",
		"1 2:1\r":           "1 2:1",
		"1 2:1 \r\r":        "1 2:1",
		"1\r":               "1",
		"1 2:1 # a comment": "1 2:1",
		"1 2:1#adjoining":   "1 2:1",
		"1# nothing else":   "1",
		"1 5":               "1 5:1", // a key without value
		"1 5 6:2 7":         "1 5:1 6:2 7:1",
		"1 5:0":             "1 5:0",
		"1 5:1 5:1 5:2":     "1 5:1 5:1 5:2", // a repeated key stays; models add up
		"1 0:1":             "1 0:1",         // an ordinary key
		"1 7:1 3:1":         "1 7:1 3:1",     // in any order
		"1 qid:3 1:1":       "1 qid:3 1:1",
		"1 qid:0":           "1 qid:0",
		"1 12345678:1 123456789:1 99999999:1 100000000:1":        "1 12345678:1 123456789:1 99999999:1 100000000:1",
		"1 18446744073709551615:1":                               "1 18446744073709551615:1",
		"1 0000000000000000000000000000000007:1":                 "1 7:1",
		"1 1:-1 2:+1 3:.5 4:5. 5:1e3 6:1E-3 7:10 8:1.5":          "1 1:-1 2:1 3:0.5 4:5 5:1000 6:0.001 7:10 8:1.5",
		"1 1:0.1 2:16777217 3:3.4028235e38 4:1e-46 5:0.00000001": "1 1:0.1 2:1.6777216e+07 3:3.4028235e+38 4:0 5:1e-08",
		"": "", " ": "", "\t \r": "", "# only a comment": "", "  # 1 2:3": "", "\r": "",
	} {
		got, err := parseLine(line, LabelReal)
		require.NoError(t, err, "%q", line)
		require.Equal(t, want, got, "%q", line)
	}
}

func TestBadLines(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"3:1 4:1":                      `the label is missing: the line starts with "3:1"`,
		" 3:1":                         `the label is missing: the line starts with "3:1"`,
		"qid:1 3:1":                    `the label is missing: the line starts with "qid:1"`,
		"x 3:1":                        `the label "x" is not a finite number`,
		"nan 3:1":                      `the label "nan" is not a finite number`,
		"inf":                          `the label "inf" is not a finite number`,
		"1e39 3:1":                     `the label "1e39" is not a finite number`,
		"1,2 3:1":                      `the label "1,2" is not a finite number`,
		"- 3:1":                        `the label "-" is not a finite number`,
		"--1 3:1":                      `the label "--1" is not a finite number`,
		"1 3:nan":                      `the value "nan" is not a finite number`,
		"1 3:NaN 4:1":                  `the value "NaN" is not a finite number`,
		"1 3:inf":                      `the value "inf" is not a finite number`,
		"1 3:-Infinity":                `the value "-Infinity" is not a finite number`,
		"1 3:1e39":                     `the value "1e39" is not a finite number`,
		"1 3:0x1p-2":                   `the value "0x1p-2" is not a finite number`,
		"1 3:1_0":                      `the value "1_0" is not a finite number`,
		"1 3:1e":                       `the value "1e" is not a finite number`,
		"1 3:1.2.3":                    `the value "1.2.3" is not a finite number`,
		"1 3:1-2":                      `the value "1-2" is not a finite number`,
		"1 3:":                         `the value "" is not a finite number`,
		"1 3: 4:1":                     `the value "" is not a finite number`,
		"1 3:1:2":                      `the value "1:2" is not a finite number`,
		"1 3:.":                        `the value "." is not a finite number`,
		"1 3:11x":                      `the value "11x" is not a finite number`,
		"1 18446744073709551616:1":     `the key of "18446744073709551616:1" is not in 0 … 2^64-1`,
		"1 99999999999999999999:1":     `the key of "99999999999999999999:1" is not in 0 … 2^64-1`,
		"1 -5:1":                       `the key of "-5:1" is not in 0 … 2^64-1`,
		"1 +5:1":                       `"+5:1" is not of the form key:value`,
		"1 x:1":                        `"x:1" is not of the form key:value`,
		"1 :1":                         `":1" is not of the form key:value`,
		"1 5x":                         `"5x" is not of the form key:value`,
		"1 5;6":                        `"5;6" is not of the form key:value`,
		"1 1.5:1":                      `"1.5:1" is not of the form key:value`,
		"1 qid:x":                      `"qid:x" is not of the form qid:number`,
		"1 qid:":                       `"qid:" is not of the form qid:number`,
		"1 qid:-1":                     `"qid:-1" is not of the form qid:number`,
		"1 qid:1.5":                    `"qid:1.5" is not of the form qid:number`,
		"1 3:1\r4:1":                   "a carriage return within the line",
		"\r1 3:1":                      "a carriage return within the line",
		"\x00\x01\x02":                 `the label "\x00\x01\x02" is not a finite number`,
		"1 \x00":                       `"\x00" is not of the form key:value`,
		"1 3:1\x00":                    `the value "1\x00" is not a finite number`,
		"1 " + strings.Repeat("y", 99): `"` + strings.Repeat("y", 40) + `"… is not of the form key:value`,
	} {
		_, err := parseLine(line, LabelReal)
		require.EqualError(t, err, want, "%q", line)
	}
}

func TestBinaryLabels(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{"1 2:1": "1 2:1", "0 2:1": "0 2:1", "-1 2:1": "0 2:1", "+1 2:1": "1 2:1",
		"-1.0 2:1": "0 2:1", "-1": "0", "-1\t2:1": "0 2:1", "0.0": "0", "+1.": "1"} {
		got, err := parseLine(line, LabelBinary)
		require.NoError(t, err, "%q", line)
		require.Equal(t, want, got, "%q", line)
	}
	for _, label := range []string{"2", "0.5", "-2", "1e-9"} {
		_, err := parseLine(label+" 2:1", LabelBinary)
		require.EqualError(t, err, fmt.Sprintf("the label %q is neither 1 nor 0 nor -1, which are the labels of this model", label))
	}
}

// TestNumbers: every number is rounded exactly as strconv does.
func TestNumbers(t *testing.T) {
	t.Parallel()
	check := func(t require.TestingT, s string) {
		want, err := strconv.ParseFloat(s, 32)
		b := append([]byte(s+" "), make([]byte, slack)...)
		got, next := number(b, 0)
		if err != nil {
			require.Zero(t, next, s)
			return
		}
		require.Equal(t, len(s), next, s)
		require.Equal(t, math.Float32bits(float32(want)), math.Float32bits(got), s)
	}
	for _, s := range []string{"0", "-0", "1", "16777216", "16777217", "16777219", "0.1", "0.3", "9007199254740993",
		"1.00000017881393432617187499", "1.00000017881393432617187500", "1.0000000596046448", "8388608.5", "8388609.5",
		"0.00000000000000000000000000000000000001", "1e-45", "340282356779733661637539395458142568447",
		"340282356779733661637539395458142568448", "123456789012345678901234567890", ".5e1", "1e22", "7.038531e-26",
		"0000000000000000000000000000.5", "33554435.000000001",
		"18446744073709551617", "1844674407370955161.7", "184467440737095516160.5"} {
		check(t, s)
	}
	for m := 1 << 24; m < 1<<24+500; m++ { // just beyond what a float32 holds exactly
		digits := strconv.Itoa(m)
		for fraction := 1; fraction < len(digits); fraction++ {
			check(t, digits[:len(digits)-fraction]+"."+digits[len(digits)-fraction:])
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		check(t, rapid.StringMatching(`[+-]?([0-9]{1,12}(\.[0-9]{0,14})?|\.[0-9]{1,14})([eE][+-]?[0-9]{1,2})?`).Draw(t, "number"))
		check(t, strconv.FormatFloat(float64(rapid.Float32().Draw(t, "float32")), 'f', -1, 32))
		// halfway between two float32, and next to it
		f := float64(math.Float32frombits(rapid.Uint32Range(0x3f000000, 0x4b000000).Draw(t, "bits")))
		next := float64(math.Nextafter32(float32(f), math.MaxFloat32))
		for _, v := range []float64{(f + next) / 2, math.Nextafter((f+next)/2, 0), math.Nextafter((f+next)/2, 1e9)} {
			check(t, strconv.FormatFloat(v, 'f', -1, 64))
		}
	})
}

// TestKeys: every key is read as strconv reads it, also those that end near
// the eight bytes that are read at once.
func TestKeys(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.Uint64().Draw(t, "key") >> rapid.IntRange(0, 63).Draw(t, "shift")
		got, err := parseLine(fmt.Sprintf("0 %d:1 %d %d:1 %d:2", key, key, key, key), LabelAny)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("0 %d:1 %d:1 %d:1 %d:2", key, key, key, key), got)
	})
}

// FuzzParser compares with a plain parser.
func FuzzParser(f *testing.F) {
	for _, s := range []string{"1 3:1 11:1", "-1 3:1 ", "1 2:1 # c", "1 99999999:1 5", "1 qid:3 1:.5", "1 5:1e-3\r", "#", "1\t2:3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		if len(line) > 400 || strings.Contains(line, "\n") || strings.Contains(line, "qid") || strings.Contains(line, "\r") {
			return
		}
		want, ok := plainParse(line)
		got, err := parseLine(line, LabelReal)
		require.Equal(t, ok, err == nil, "%q: %v", line, err)
		if ok {
			require.Equal(t, want, got, "%q", line)
		}
	})
}

// plainParse is the format's definition in the simplest words.
func plainParse(line string) (string, bool) {
	line, _, _ = strings.Cut(line, "#")
	tokens := strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '\t' })
	if len(tokens) == 0 {
		return "", true
	}
	float := func(s string) (float32, bool) {
		if strings.Trim(s, "0123456789+-.eE") != "" {
			return 0, false
		}
		v, err := strconv.ParseFloat(s, 32)
		return float32(v), err == nil
	}
	label, ok := float(tokens[0])
	out := fmt.Sprint(label)
	for _, token := range tokens[1:] {
		k, v, has := strings.Cut(token, ":")
		value, good := float32(1), true
		if has {
			value, good = float(v)
		}
		key, err := strconv.ParseUint(k, 10, 64)
		ok = ok && good && err == nil && k[0] != '+'
		out += fmt.Sprintf(" %d:%v", key, value)
	}
	return out, ok
}

// TestMaxBad: bad records are counted, the first few are named with file and
// line, and one too many fails the chunk.
func TestMaxBad(t *testing.T) {
	t.Parallel()
	text := "1 1:1\n\n1 2:nan\n0 3:1\nx\n0 -4:1\n1 18446744073709551616:1\n0 5:1\n"
	path := write(t, text)[0]
	p := plan(t, 1<<20, path)
	got, _, err := records(p, 0, Options{Batch: 2, MaxBad: 4}, 0)
	require.NoError(t, err)
	require.Equal(t, []string{"1 1:1", "0 3:1", "0 5:1"}, got)

	r, err := p.Open(t.Context(), 0, Options{Batch: 100, MaxBad: 4})
	require.NoError(t, err)
	defer r.Close()
	var b Batch
	require.NoError(t, r.Next(&b))
	require.Equal(t, 4, r.Bad())
	require.Len(t, r.BadRecords(), maxNamed)
	require.Equal(t, path+`:3: the value "nan" is not a finite number`, r.BadRecords()[0].String())
	require.Equal(t, path+`:5: the label "x" is not a finite number`, r.BadRecords()[1].String())
	require.Equal(t, path+`:6: the key of "-4:1" is not in 0 … 2^64-1`, r.BadRecords()[2].String())

	for limit, want := range map[int]string{
		0: "reader: bad record: " + path + `:3: the value "nan" is not a finite number`,
		1: "reader: bad record: " + path + `:5: the label "x" is not a finite number (more than 1 in this chunk)`,
		3: "reader: bad record: " + path + `:7: the key of "18446744073709551616:1" is not in 0 … 2^64-1 (more than 3 in this chunk)`,
	} {
		for _, shuffle := range []bool{false, true} {
			_, _, err := records(p, 0, Options{Batch: 100, MaxBad: limit, Shuffle: shuffle}, 0)
			require.ErrorIs(t, err, ErrBadData)
			require.NotErrorIs(t, err, ErrData)
			require.EqualError(t, err, want)
			var bad *BadDataError
			require.ErrorAs(t, err, &bad)
			require.Equal(t, path, bad.File)
		}
	}
	// Lines are those of the file, wherever the chunk begins.
	for chunk := int64(1); chunk < int64(len(text)); chunk++ {
		_, err := all(plan(t, chunk, path), Options{Batch: 3})
		require.ErrorContains(t, err, path+":3: ", "chunk %d", chunk)
	}
}

// TestBinaryFile: a file that is no text is bad data, not a crash.
func TestBinaryFile(t *testing.T) {
	t.Parallel()
	program, err := os.Executable()
	require.NoError(t, err)
	content, err := os.ReadFile(program)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "binary")
	require.NoError(t, os.WriteFile(path, content[:1<<20], 0o600))
	p := plan(t, 64<<10, path)
	_, err = all(p, Options{Batch: 8})
	require.ErrorIs(t, err, ErrBadData)
	require.ErrorContains(t, err, path+":1: ")
	_, err = all(p, Options{Batch: 8, MaxBad: 1 << 30})
	require.NoError(t, err)
}

// TestDeepLines: lines are not counted without end.
func TestDeepLines(t *testing.T) {
	t.Parallel()
	var c lineCounter
	require.Equal(t, int64(3), c.line(strings.NewReader("a\nb\nc"), 4))
	require.Equal(t, int64(3), c.line(strings.NewReader("a\nb\nc"), 5))
	require.Zero(t, c.line(strings.NewReader("a"), 4), "going back, or a file that shrank")
	require.Zero(t, c.line(strings.NewReader("a"), countLimit+1))
	require.Equal(t, "f: byte 7: x", BadRecord{File: "f", Offset: 7, Reason: "x"}.String())
}
