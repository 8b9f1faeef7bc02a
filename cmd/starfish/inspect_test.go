package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/job"
	"starfish/reader"
)

// propose is the proposal for a file of that name and content.
func propose(t *testing.T, name, content string, p proposal) (string, *job.Spec) {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	profile, err := reader.Inspect(t.Context(), path, reader.InspectOptions{})
	require.NoError(t, err)
	p.profile = profile
	text, err := p.yaml()
	require.NoError(t, err)
	spec, err := job.ParseSpec([]byte(text), filepath.Dir(path), nil, job.CheckFiles())
	require.NoError(t, err, text)
	require.Equal(t, []string{path}, spec.Data.Train)
	return text, spec
}

// TestPropose: what is proposed reads as a spec, and says what a person would.
func TestPropose(t *testing.T) {
	t.Parallel()
	var s strings.Builder
	s.WriteString("id,age,\"in come\",tail,share,city,tags,code,same,name,none,bought\n")
	for i := range 300 {
		gain := 0
		if i%100 == 0 {
			gain = 50000
		}
		age := fmt.Sprint(20 + i%50)
		if i%30 == 0 {
			age = "NA"
		}
		fmt.Fprintf(&s, "%d,%s,%d,%d,0.%d,c%d,a|b%d,%05d,7,n%d,,%s\n", i, age, 20000+i*37, gain, i%10, i%9, i%4, i%7, i, []string{"no", "no", "yes"}[i%3])
	}
	text, spec := propose(t, "my people.v2.csv", s.String(), proposal{weight: "share"})
	require.Equal(t, "my-people", spec.Job)
	require.Equal(t, "logistic", spec.Model.Type)
	require.Equal(t, 18, spec.Model.Bits)
	require.Equal(t, "bought", spec.Data.Label)
	require.Equal(t, "share", spec.Data.Weight)
	require.True(t, spec.Data.CSV.Header)
	require.Equal(t, map[string]string{"no": "0", "yes": "1"}, spec.Data.CSV.Labels)
	require.Equal(t, []string{"NA"}, spec.Data.CSV.Missing)
	byName := make(map[string]job.Feature)
	for _, f := range spec.Features {
		byName[f.Name] = f
	}
	require.Len(t, byName, 6)
	require.Equal(t, "standard", byName["age"].Transform)
	require.InDelta(t, 44.6, byName["age"].Mean, 0.2)
	require.NotEmpty(t, byName["age"].Missing)
	require.Equal(t, "standard", byName["in come"].Transform)
	require.Equal(t, "log1p", byName["tail"].Transform)
	require.Equal(t, job.Feature{Name: "city", Type: "categorical"}, byName["city"])
	require.Equal(t, job.Feature{Name: "tags", Type: "list", Sep: "|", Pool: "mean"}, byName["tags"])
	require.Equal(t, "categorical", byName["code"].Type, "zeros before it make it a code")
	for _, why := range []string{`"id": counts the records`, `"same": has the same value everywhere`, `"name": 300 different texts`,
		`"none": has no values`, `# Label "bought": "no" 200 (66.7 %), "yes" 100 (33.3 %)`, "10 missing"} {
		require.Contains(t, text, why)
	}
}

// A column of dates is called one, whatever way they are written.
func TestProposeDates(t *testing.T) {
	t.Parallel()
	var s strings.Builder
	s.WriteString("iso,german,american,moment,no,y\n")
	for i := range 200 {
		fmt.Fprintf(&s, "2024-%02d-%02d,%d.%d.2024,%d/%d/2024,2024-01-%02dT10:00:00Z,1-%d-1,%d\n",
			i%12+1, i%28+1, i%28+1, i%12+1, i%12+1, i%28+1, i%28+1, i%12, i%2)
	}
	text, _ := propose(t, "dates.csv", s.String(), proposal{})
	for line := range strings.Lines(text) {
		if name, rest, ok := strings.Cut(line, ", type: categorical"); ok {
			require.Equal(t, !strings.Contains(name, `"no"`), strings.Contains(rest, "dates: "), line)
		}
	}
	require.Equal(t, 4, strings.Count(text, "dates: "))
	require.Contains(t, text, "# test: ")
}

// TestProposeOther kinds of file and label.
func TestProposeOther(t *testing.T) {
	t.Parallel()
	_, spec := propose(t, "x.tsv", "1.5\tu\n2.5\tv\n9\tu\n", proposal{label: "c1"})
	require.Equal(t, "linear", spec.Model.Type)
	require.Equal(t, "tsv", spec.Data.Format)
	require.Equal(t, []string{"c1", "c2"}, spec.Data.CSV.Columns)
	require.False(t, spec.Data.CSV.Header)
	_, spec = propose(t, "x.data", "a;y\n\"u\nv\";1\nw;-1\n", proposal{})
	require.Equal(t, ";", spec.Data.CSV.Delimiter)
	require.Equal(t, job.WholeFile, spec.Data.Chunk)
	require.Equal(t, "logistic", spec.Model.Type)
	require.Empty(t, spec.Data.CSV.Labels)
	text, spec := propose(t, "x.data", "-1 1:1\n1 2:1 7:0.5\n1 x\n", proposal{})
	require.Equal(t, "libsvm", spec.Data.Format)
	require.Equal(t, 1, spec.Data.MaxBadRecords)
	require.Contains(t, text, ":3: \"x\" is not of the form key:value")
	text, spec = propose(t, "x.csv", "class,a\nred,1\nblue,2\ngreen,3\nred,4\n", proposal{})
	require.Len(t, spec.Data.CSV.Labels, 3)
	require.Contains(t, text, "several")
	var many strings.Builder
	many.WriteString("a,y\n")
	for i := range 300 {
		fmt.Fprintf(&many, "%d,n%d\n", i%7, i)
	}
	text, spec = propose(t, "x.csv", many.String(), proposal{})
	require.Empty(t, spec.Data.CSV.Labels)
	require.Contains(t, text, "# Label \"y\": 300 different texts\n# It is neither a number nor one of two texts")
	_, spec = propose(t, "x.csv", "y,a\n1,u\n0,caf\xc3\xa9 \"x\"\n", proposal{})
	require.Len(t, spec.Features, 1)
}

// TestProposeWithDoubt: what needs a second look is said.
func TestProposeWithDoubt(t *testing.T) {
	t.Parallel()
	var s strings.Builder
	s.WriteString("account,weight,huge,y\n")
	for i := range 60 {
		fmt.Fprintf(&s, "%d,%d,%s,%s\n", 1000+i*7919%997, 1+i%3, []string{"1e308", "-1e308", "0"}[i%3], []string{"yes", "no", "", "NA"}[i%4])
	}
	text, spec := propose(t, "x.csv", s.String(), proposal{})
	require.Contains(t, text, "another one in each record")
	require.Contains(t, text, "; --weight weight if")
	require.Contains(t, text, "# 30 records without label cannot be trained on.")
	require.Equal(t, 30, spec.Data.MaxBadRecords)
	require.Equal(t, "huge", spec.Features[2].Name)
	require.InDelta(t, 1e308, spec.Features[2].Stddev, 1e302, "not infinite")
	text, _ = propose(t, "x.csv", s.String(), proposal{weight: "weight"})
	require.NotContains(t, text, "--weight")

	path := filepath.Join(t.TempDir(), "x.csv")
	require.NoError(t, os.WriteFile(path, []byte(s.String()), 0o644))
	out := newCall(t, "inspect-data", "-o", "json", path).succeed()
	require.True(t, json.Valid(out.stdout.Bytes()))
}

// TestProposeNothing: a file of nothing but names gives a spec that says so, and
// not one that trains on the names.
func TestProposeNothing(t *testing.T) {
	t.Parallel()
	var s strings.Builder
	s.WriteString("id,same,y\n")
	for i := range 100 {
		fmt.Fprintf(&s, "%d,x,%d\n", i, i%2)
	}
	path := filepath.Join(t.TempDir(), "x.csv")
	require.NoError(t, os.WriteFile(path, []byte(s.String()), 0o644))
	text := newCall(t, "inspect-data", path).succeed().stdout.String()
	require.Contains(t, text, "features: []   # nothing is left to learn from")
	_, err := job.ParseSpec([]byte(text), filepath.Dir(path), nil, job.CheckFiles())
	require.ErrorContains(t, err, "features: the list is empty")
}

// TestProposeRefuses: what a spec cannot name, or names twice.
func TestProposeRefuses(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		"gr\xf6\xdfe,y\n1,0\n2,1\n": `x.csv: "gr\xf6\xdfe" is not in UTF-8, as a spec is: convert the file, for example with iconv -f LATIN1 -t UTF-8`,
		"a,y\n1,n\xe3o\n2,sim\n":    `x.csv: "n\xe3o" is not in UTF-8`,
		"a,b,a,y\n1,2,3,1\n":        `x.csv: wrong columns: more than one is called "a"; rename all but one`,
	} {
		path := filepath.Join(t.TempDir(), "x.csv")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		c := newCall(t, "inspect-data", path)
		require.Equal(t, 2, c.run(), c.stderr.String())
		require.Contains(t, c.stderr.String(), says)
		require.Empty(t, c.stdout.String())
	}
}

// TestInspectData: from a file to a model with one command each.
func TestInspectData(t *testing.T) {
	dir := t.TempDir()
	var s strings.Builder
	s.WriteString("size,colour,sold\n")
	for i := range 2000 {
		colour := []string{"red", "blue"}[i/7%2]
		sold := "no"
		if (i*31%1000 > 500) != (colour == "blue" && i%5 == 0) {
			sold = "yes"
		}
		fmt.Fprintf(&s, "%d,%s,%s\n", 1000+i*31%1000, colour, sold)
	}
	file := filepath.Join(dir, "shop.csv")
	require.NoError(t, os.WriteFile(file, []byte(s.String()), 0o644))
	spec := newCall(t, "inspect-data", file).succeed().stdout.String()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "shop.yaml"), []byte(spec), 0o644))
	r := newCall(t, "run", "-f", filepath.Join(dir, "shop.yaml"), "--set", "data.test=shop.csv", "--set", "train.passes=8", "--result", "-").succeed().result()
	require.Greater(t, *r.Test.Metrics["auc"], 0.85)

	var profile reader.Profile
	found := newCall(t, "inspect-data", "-o", "json", "--label", "sold", file).succeed()
	require.NoError(t, json.Unmarshal(found.stdout.Bytes(), &profile))
	require.EqualValues(t, 2000, profile.Records)
	require.True(t, profile.Complete)
	for _, wrong := range [][]string{{}, {file, file}, {filepath.Join(dir, "absent")}, {dir}, {"-o", "xml", file}, {"--format", "parquet", file},
		{"--label", "price", file}, {"--header", "maybe", file}, {"--delimiter", ",,", file}, {"--delimiter", "e", file}} {
		c := newCall(t, append([]string{"inspect-data"}, wrong...)...)
		require.Equal(t, 2, c.run(), "%v", wrong)
		require.Len(t, strings.Split(strings.TrimSpace(c.stderr.String()), "\n"), 1)
	}
}

// The census as it was published: text without header, categories, blanks
// behind commas, another spelling of the labels in the test file.
func TestRunCensus(t *testing.T) {
	r := newCall(t, "run", "-f", "../../examples/census/census.yaml", "--result", "-").succeed().result()
	require.EqualValues(t, 8*32561, r.Records)
	require.EqualValues(t, 16281, r.Test.Records)
	require.GreaterOrEqual(t, *r.Test.Metrics["auc"], 0.914)
	require.GreaterOrEqual(t, *r.Test.Metrics["accuracy"], 0.860)
	require.LessOrEqual(t, *r.Test.Metrics["loss"], 0.300)
}
