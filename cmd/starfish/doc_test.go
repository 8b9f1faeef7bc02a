package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"starfish/internal/store/fake"
	"starfish/mutants"
	"starfish/pserver"
	"starfish/trainer"
)

// root is the module's root.
var root = filepath.Join("..", "..")

// page reads a page of the documentation.
func page(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs", name))
	require.NoError(t, err)
	return string(text)
}

var (
	helpFlag    = regexp.MustCompile(`(?m)^ +(?:-., )?--([a-z-]+)`)
	helpDefault = regexp.MustCompile(`\(default "?([^")]+)"?\)$`)
	pageFlag    = regexp.MustCompile("`--([a-z-]+)`")
)

// askHeading is the section with the flags of commands that ask about a job.
const askHeading = "Commands that ask about a job, or change one"

// sections are the flag tables of the page below the headings, by flag: the
// cell with the default.
func sections(t *testing.T, page string, headings ...string) map[string]string {
	t.Helper()
	flags := make(map[string]string)
	for _, heading := range headings {
		_, text, ok := strings.Cut(page, "\n### "+heading+"\n")
		require.True(t, ok, heading)
		text, _, _ = strings.Cut(text, "\n#")
		for line := range strings.Lines(text) {
			cells := strings.Split(line, "|")
			if len(cells) < 4 {
				continue
			}
			for _, m := range pageFlag.FindAllStringSubmatch(cells[1], -1) {
				flags[m[1]] = strings.TrimSpace(cells[2])
			}
		}
	}
	return flags
}

// TestFlagsPage: docs/operations.md has every flag of every program with its
// default, and none that does not exist.
func TestFlagsPage(t *testing.T) {
	programs := filepath.Dir(starfishProgram(t))
	text := page(t, "operations.md")
	cases := map[string]struct {
		call     []string
		headings []string
		others   []string // flags of the tables that another command has
	}{
		"pserver":  {call: []string{"pserver"}, headings: []string{"Flags of both daemons", "pserver"}},
		"trainer":  {call: []string{"trainer"}, headings: []string{"Flags of both daemons", "trainer"}},
		"run":      {call: []string{"starfish", "run"}, headings: []string{"starfish run"}},
		"status":   {call: []string{"starfish", "status"}, headings: []string{askHeading, "starfish status"}},
		"ls":       {call: []string{"starfish", "queue", "ls"}, headings: []string{askHeading, "starfish queue"}, others: []string{"all"}},
		"failed":   {call: []string{"starfish", "queue", "failed"}, headings: []string{askHeading}},
		"requeue":  {call: []string{"starfish", "queue", "requeue"}, headings: []string{askHeading, "starfish queue"}, others: []string{"lane", "pass"}},
		"audit":    {call: []string{"starfish", "queue", "audit"}, headings: []string{askHeading}},
		"list":     {call: []string{"starfish", "checkpoint", "ls"}, headings: []string{askHeading}},
		"verify":   {call: []string{"starfish", "checkpoint", "verify"}, headings: []string{askHeading, "starfish checkpoint"}, others: []string{"timeout"}},
		"now":      {call: []string{"starfish", "checkpoint", "now"}, headings: []string{askHeading, "starfish checkpoint"}, others: []string{"checkpoint-dir"}},
		"delete":   {call: []string{"starfish", "delete"}, headings: []string{askHeading, "starfish delete"}},
		"jobs":     {call: []string{"starfish", "jobs"}, headings: []string{askHeading}, others: []string{"job"}},
		"submit":   {call: []string{"starfish", "submit"}, headings: []string{"starfish submit"}},
		"inspect":  {call: []string{"starfish", "inspect-data"}, headings: []string{"starfish inspect-data"}},
		"generate": {call: []string{"starfish", "generate", "ctr"}, headings: []string{"starfish generate ctr"}},
		"predict":  {call: []string{"starfish", "predict"}, headings: []string{"starfish predict"}},
		"export":   {call: []string{"starfish", "export"}, headings: []string{"starfish export"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			help, err := exec.Command(filepath.Join(programs, c.call[0]), append(c.call[1:], "--help")...).Output()
			require.NoError(t, err)
			documented := sections(t, text, c.headings...)
			var known []string
			for line := range strings.Lines(string(help)) {
				line = strings.TrimRight(line, "\n")
				m := helpFlag.FindStringSubmatch(line)
				if m == nil || m[1] == "help" && name != "pserver" && name != "trainer" {
					continue
				}
				known = append(known, m[1])
				cell, ok := documented[m[1]]
				require.True(t, ok, "docs/operations.md lacks --%s", m[1])
				if d := helpDefault.FindStringSubmatch(line); d != nil && !strings.Contains(d[1], " ") {
					require.Contains(t, cell, "`"+d[1]+"`", "the default of --%s", m[1])
				}
			}
			require.Greater(t, len(known), 5)
			for flag := range documented {
				require.True(t, slices.Contains(known, flag) || slices.Contains(c.others, flag), "there is no --%s", flag)
			}
		})
	}
}

// TestMetricsPage: docs/operations.md has every metric of both daemons, and
// none that does not exist.
func TestMetricsPage(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	st := fake.New(fake.Options{})
	_, err := pserver.New(pserver.Config{Store: st, Name: "p", Registerer: registry})
	require.NoError(t, err)
	_, err = trainer.New(trainer.Config{Store: st, Job: "j", Name: "t", Registerer: registry})
	require.NoError(t, err)
	described := make(chan *prometheus.Desc)
	go func() {
		defer close(described)
		registry.Describe(described)
	}()
	name := regexp.MustCompile(`fqName: "([a-z_]+)"`)
	known := make(map[string]bool)
	for d := range described {
		known[name.FindStringSubmatch(d.String())[1]] = true
	}
	require.Greater(t, len(known), 25)
	documented := make(map[string]bool)
	for _, m := range regexp.MustCompile("(?m)^\\| `(starfish_[a-z_]+)` \\|").FindAllStringSubmatch(page(t, "operations.md"), -1) {
		documented[m[1]] = true
	}
	require.Equal(t, known, documented)
}

// TestRobustnessPage: docs/robustness.md names every mutant that a named test
// catches, docs/mutants.md those that only the simulation does, and none a test
// that does not exist.
func TestRobustnessPage(t *testing.T) {
	t.Parallel()
	text := page(t, "robustness.md")
	for _, m := range mutants.List() {
		where, in := "robustness.md", text
		if m.Run == "" {
			where, in = "mutants.md", page(t, "mutants.md")
		}
		there := strings.Contains(in, "`"+m.Name+"`")
		require.True(t, there, "docs/%s lacks the mutant %s of invariant %d", where, m.Name, m.Invariant)
	}
	requireTests(t, text)
}

// TestRequirementsPage: docs/requirements.md has every row, each with a test
// that exists or with a reason why there is none.
func TestRequirementsPage(t *testing.T) {
	t.Parallel()
	text := page(t, "requirements.md")
	rows := make(map[string]bool)
	for line := range strings.Lines(text) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || strings.HasPrefix(cells[1], "---") || strings.TrimSpace(cells[1]) == "row" {
			continue
		}
		reason := regexp.MustCompile(`not yet|does not apply|\]\(\w+\.md\)`).MatchString(cells[3])
		require.True(t, reason || namedTest.MatchString(cells[3]), "no test and no reason: %s", line)
		for name := range strings.SplitSeq(cells[1], ",") {
			rows[strings.TrimSpace(name)] = true
		}
	}
	for kind, last := range map[string]int{"R": 57, "B": 40} {
		for i := range last {
			name := kind + strconv.Itoa(i+1)
			require.True(t, rows[name], "docs/requirements.md lacks %s", name)
		}
	}
	requireTests(t, text)
}

var namedTest = regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9_]+)`")

// requireTests requires that the tests that a page names exist.
func requireTests(t *testing.T, text string) {
	t.Helper()
	exists := make(map[string]bool)
	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Za-z0-9_]+)\(`)
	err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		code, err := os.ReadFile(path)
		for _, m := range function.FindAllSubmatch(code, -1) {
			exists[string(m[1])] = true
		}
		return err
	})
	require.NoError(t, err)
	named := namedTest.FindAllStringSubmatch(text, -1)
	require.Greater(t, len(named), 80)
	for _, m := range named {
		require.True(t, exists[m[1]], "there is no %s", m[1])
	}
}

// TestDependenciesPage: docs/dependencies.md names each direct dependency with
// its version.
func TestDependenciesPage(t *testing.T) {
	t.Parallel()
	text := page(t, "dependencies.md")
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	required := regexp.MustCompile(`(?m)^\t(\S+) v(\S+)$`).FindAllStringSubmatch(string(mod), -1) // indirect ones have a comment
	require.Greater(t, len(required), 10)
	for _, m := range required {
		there := strings.Contains(text, "| `"+m[1]+"` | "+m[2]+" |")
		require.True(t, there, "docs/dependencies.md lacks %s %s", m[1], m[2])
	}
}
