package modelfile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/stretchr/testify/require"

	"starfish/job"
)

// content is a model in memory, in parts: a parameter's rows or elements.
type content struct {
	list []job.Parameter
	runs map[int][]Run
}

func (c content) Rows(p int) (n int64) {
	if c.list[p].Sparse {
		for _, r := range c.runs[p] {
			n += int64(len(r.Keys))
		}
	}
	return n
}

func (c content) Export(p int) iter.Seq[Run] { return slices.Values(c.runs[p]) }

// collected is what a Sink was given.
type collected struct {
	meta *Metadata
	all  map[int]Run
}

func (c *collected) Begin(m *Metadata) error {
	c.meta, c.all = m, map[int]Run{}
	return nil
}

func (c *collected) Run(p int, r Run) error {
	have := c.all[p]
	have.Keys = append(have.Keys, r.Keys...)
	have.Floats = append(have.Floats, r.Floats...)
	have.Counts = append(have.Counts, r.Counts...)
	c.all[p] = have
	return nil
}

// The parameters of the test model.
const (
	pTable = iota
	pBias
	pSeen
	pWide
	pMatrix
	pEmpty
)

func testMetadata(t testing.TB) Metadata {
	t.Helper()
	spec, err := job.ParseSpec([]byte("job: j\ndata: {train: [x]}\nmodel: {type: logistic}\nshards: 3\n"), "/d", nil)
	require.NoError(t, err)
	params, err := job.Resolve(spec, []job.Parameter{
		pTable:  {Name: "weights", Sparse: true, Dim: 1},
		pBias:   {Name: "bias"},
		pSeen:   {Name: "seen", Sparse: true, Dim: 2, Optimizer: job.OptimizerSettings{Type: job.OptimizerCount}},
		pWide:   {Name: "wide", Sparse: true, Dim: 3},
		pMatrix: {Name: "matrix", Shape: []int{150, 120}},
		pEmpty:  {Name: "empty", Sparse: true, Dim: 1},
	})
	require.NoError(t, err)
	return Metadata{Job: "j", UUID: "u", Records: 77, Spec: spec, Parameters: params}
}

// testParts is a model spread over parts, and the same as one.
func testParts(m Metadata, rows int) (parts []Content, want map[int]Run) {
	const n = 3
	rng := rand.New(rand.NewPCG(1, 2))
	cs := make([]content, n)
	for i := range cs {
		cs[i] = content{list: m.Parameters.List, runs: map[int][]Run{}}
		parts = append(parts, cs[i])
	}
	want = map[int]Run{}
	add := func(part, p int, r Run) {
		cs[part].runs[p] = append(cs[part].runs[p], r)
	}
	float := func() float32 { return math.Float32frombits(rng.Uint32() &^ (1 << 29)) }
	for _, p := range []int{pTable, pSeen, pWide} {
		if p >= len(m.Parameters.List) {
			continue
		}
		dim := m.Parameters.List[p].Dim
		var all Run
		pieces := make([]Run, n)
		key := uint64(0)
		for i := range rows {
			if i == rows-1 {
				key = math.MaxUint64
			}
			part := rng.IntN(n)
			r := &pieces[part]
			r.Keys, all.Keys = append(r.Keys, key), append(all.Keys, key)
			for range dim {
				if p == pSeen {
					c := rng.Uint64()
					r.Counts, all.Counts = append(r.Counts, c), append(all.Counts, c)
				} else {
					v := float()
					r.Floats, all.Floats = append(r.Floats, v), append(all.Floats, v)
				}
			}
			if len(r.Keys) == 5 {
				add(part, p, *r)
				*r = Run{}
			}
			key += 1 + rng.Uint64N(1000)
		}
		for part, r := range pieces {
			add(part, p, r)
		}
		want[p] = all
	}
	add(1, pBias, Run{Floats: []float32{-0.25}})
	want[pBias] = Run{Floats: []float32{-0.25}}
	if len(m.Parameters.List) <= pMatrix {
		return parts, want
	}
	var matrix Run
	for range 150 * 120 {
		matrix.Floats = append(matrix.Floats, float())
	}
	add(2, pMatrix, Run{First: 0, Floats: matrix.Floats[:job.BlockSize]})
	add(0, pMatrix, Run{First: job.BlockSize, Floats: matrix.Floats[job.BlockSize:]})
	want[pMatrix] = matrix
	return parts, want
}

func write(t testing.TB, form Form, m Metadata, c Content) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m")
	f, err := os.Create(path)
	require.NoError(t, err)
	_, err = Write(f, form, m, c)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return b
}

func readBytes(b []byte) (*collected, error) {
	var c collected
	return &c, read(bytes.NewReader(b), int64(len(b)), &c)
}

var forms = map[string]Form{"text": Text, "npz": NPZ, "safetensors": Safetensors}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	for name, form := range forms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := testMetadata(t)
			parts, want := testParts(m, 10_000)
			b := write(t, form, m, Merge(m.Parameters.List, parts))
			got, err := readBytes(b)
			require.NoError(t, err)
			require.Equal(t, want, got.all)
			require.Equal(t, []int64{10_000, 0, 10_000, 10_000, 0, 0}, got.meta.Rows)
			require.Equal(t, Version, got.meta.V)
			require.Equal(t, m.Spec.JSON(), got.meta.Spec.JSON())
			require.Equal(t, m.Parameters, got.meta.Parameters)
			require.Equal(t, [3]any{"j", "u", int64(77)}, [3]any{got.meta.Job, got.meta.UUID, got.meta.Records})
			// The number of parts leaves no trace.
			whole := content{list: m.Parameters.List, runs: map[int][]Run{}}
			for p, r := range want {
				whole.runs[p] = []Run{r}
			}
			require.True(t, bytes.Equal(b, write(t, form, m, whole)))
		})
	}
}

func TestForms(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]Form{"a.npz": NPZ, "b.NPZ": NPZ, "c.safetensors": Safetensors, "d.txt": Text, "npz": Text} {
		require.Equal(t, want, FormOf(path), path)
	}
}

// TestTextLayout pins the text form.
func TestTextLayout(t *testing.T) {
	t.Parallel()
	m := testMetadata(t)
	parts, _ := testParts(m, 2)
	lines := strings.Split(string(write(t, Text, m, Merge(m.Parameters.List, parts))), "\n")
	require.Regexp(t, `^# starfish model, version 1, xxh64 [0-9a-f]{16} \{"v":1,"job":"j",.*"rows":\[2,0,2,2,0,0\]\}$`, lines[0])
	require.Equal(t, "bias\t0\t-0.25", lines[1])
	require.True(t, strings.HasPrefix(lines[2], "matrix\t0\t"))
	require.Regexp(t, `^seen\t0\t\d+\t\d+$`, lines[2+150*120])
	require.Regexp(t, `^wide\t18446744073709551615(\t[-0-9.e+]+){3}$`, lines[len(lines)-2])
	require.Empty(t, lines[len(lines)-1])
}

// TestNamesThatCollide: two arrays of one name are not written.
func TestNamesThatCollide(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"metadata", "weights.keys", "weights.values"} {
		m := testMetadata(t)
		m.Parameters.List = []job.Parameter{m.Parameters.List[pTable], m.Parameters.List[pBias]}
		m.Parameters.List[1].Name = name
		c := content{list: m.Parameters.List, runs: map[int][]Run{1: {{Floats: []float32{1}}}}}
		for _, form := range forms {
			f, err := os.Create(filepath.Join(t.TempDir(), "m"))
			require.NoError(t, err)
			_, err = Write(f, form, m, c)
			require.NoError(t, f.Close())
			if form == Text {
				require.NoError(t, err)
				continue
			}
			require.ErrorContains(t, err, `a second array "`+name+`"`)
		}
	}
}

// TestAModelThatChanges: a content that has fewer rows than it said is an error.
func TestAModelThatChanges(t *testing.T) {
	t.Parallel()
	m := testMetadata(t)
	parts, _ := testParts(m, 10)
	for _, form := range forms {
		f, err := os.Create(filepath.Join(t.TempDir(), "m"))
		require.NoError(t, err)
		_, err = Write(f, form, m, lying{Merge(m.Parameters.List, parts)})
		require.ErrorContains(t, err, "missing")
		require.NoError(t, f.Close())
	}
}

type lying struct{ Content }

func (l lying) Rows(p int) int64 { return l.Content.Rows(p) + 1 }

// TestDamage: no damaged file is taken for a model, whatever byte is hit.
func TestDamage(t *testing.T) {
	t.Parallel()
	for name, form := range forms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := testMetadata(t)
			m.Parameters.List = m.Parameters.List[:3]
			parts, want := testParts(m, 8)
			good := write(t, form, m, Merge(m.Parameters.List, parts))
			ok, err := readBytes(good)
			require.NoError(t, err)
			refused := func(b []byte, format string, args ...any) {
				got, err := readBytes(b)
				if err != nil {
					require.ErrorIs(t, err, ErrFile, format, args)
					return
				}
				// A zip has bytes that mean nothing here, such as times.
				require.Equal(t, NPZ, form, format, args)
				require.Equal(t, ok.meta, got.meta, format, args)
				for p, r := range got.all {
					require.Equal(t, want[p], r, format, args)
				}
			}
			for n := 0; n < len(good); n += 5 {
				_, err := readBytes(good[:n])
				require.ErrorIs(t, err, ErrFile, "cut after %d", n)
			}
			for at := 0; at < len(good); at += 3 {
				b := bytes.Clone(good)
				b[at] ^= 0x15
				refused(b, "byte %d", at)
			}
			_, err = readBytes(append(bytes.Clone(good), "more"...))
			if form != NPZ {
				require.ErrorIs(t, err, ErrFile)
			}
		})
	}
}

// TestHostile: what is consistent with its own digest is still not believed.
func TestHostile(t *testing.T) {
	t.Parallel()
	m := testMetadata(t)
	m.V = Version
	text := func(change func(*Metadata), lines string) []byte {
		own := m
		own.Parameters.List = slices.Clone(m.Parameters.List[:2])
		own.Rows = []int64{2, 0}
		if change != nil {
			change(&own)
		}
		head, err := json.Marshal(own)
		require.NoError(t, err)
		return sum(textHead, " "+string(head)+"\n"+lines)
	}
	good := "bias\t0\t1\nweights\t3\t1\nweights\t4\t2\n"
	_, err := readBytes(text(nil, good))
	require.NoError(t, err)
	for says, b := range map[string][]byte{
		"the key 3 follows 4":    text(nil, "bias\t0\t1\nweights\t4\t1\nweights\t3\t2\n"),
		"the key 4 follows 4":    text(nil, "bias\t0\t1\nweights\t4\t1\nweights\t4\t2\n"),
		"is not below 2^2":       text(func(m *Metadata) { m.Parameters.List[0].Bits = 2 }, good),
		"truncated":              text(nil, "bias\t0\t1\nweights\t4\t1\n"),
		"more than the metadata": text(nil, good+"weights\t5\t1\n"),
		"not a line of bias":     text(nil, "bias\t1\t1\nweights\t3\t1\nweights\t4\t2\n"),
		"not a line of weights":  text(nil, "bias\t0\t1\nweights\t3\t1\t9\nweights\t4\t2\n"),
		"cannot have":            text(func(m *Metadata) { m.Rows[0] = math.MaxInt64 }, good),
		"cannot have -1 rows":    text(func(m *Metadata) { m.Rows[0] = -1 }, good),
		"bias cannot have":       text(func(m *Metadata) { m.Parameters.List[1].Shape = []int{1 << 30} }, good),
		"rows of 1 parameters":   text(func(m *Metadata) { m.Rows = m.Rows[:1] }, good),
		"version 2":              text(func(m *Metadata) { m.V = 2 }, good),
		"no spec":                sum(textHead, ` {"v":1}`+"\n"),
		"unknown initialiser":    text(func(m *Metadata) { m.Parameters.List[0].Init.Kind = "magic" }, good),
		"no JSON":                sum(textHead, " nothing\n"),
		"another version than 1": []byte("# starfish model, version 9, xxh64 "),
		"neither text":           []byte("hello"),
		"a head of":              append([]byte{255, 255, 255, 0, 0, 0, 0, 0, '{'}, make([]byte, 100)...),
		"not a complete .npz":    []byte("PK\x03\x04 and so on"),
	} {
		_, err := readBytes(b)
		require.ErrorIs(t, err, ErrFile, says)
		require.ErrorContains(t, err, says)
	}
	_, err = readBytes(nil)
	require.ErrorIs(t, err, ErrFile)
}

// sum puts the right digest between prefix and rest.
func sum(prefix, rest string) []byte {
	return fmt.Appendf(nil, "%s%016x%s", prefix, xxhash.Sum64String(rest), rest)
}

func TestReadNamesTheFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "model.npz")
	require.NoError(t, os.WriteFile(path, []byte("# comment\n1 2:3\n"), 0o600))
	err := Read(path, &collected{})
	require.ErrorIs(t, err, ErrFile)
	require.ErrorContains(t, err, path)
	require.ErrorIs(t, Read(path+"x", &collected{}), os.ErrNotExist)
	require.ErrorIs(t, Read(filepath.Dir(path), &collected{}), ErrFile)
}

// FuzzRead: no file crashes the reader, and none makes it allocate more than a
// few times its size.
func FuzzRead(f *testing.F) {
	m := testMetadata(f)
	m.Parameters.List = m.Parameters.List[:3]
	parts, _ := testParts(m, 6)
	for _, form := range forms {
		f.Add(write(f, form, m, Merge(m.Parameters.List, parts)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := readBytes(b)
		if err != nil {
			return
		}
		for i, p := range got.meta.Parameters.List {
			if r := got.all[i]; p.Sparse && int64(len(r.Keys)) != got.meta.Rows[i] {
				t.Fatal(fmt.Sprint("rows are missing of ", p.Name))
			}
		}
	})
}
