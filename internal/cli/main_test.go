package cli

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"starfish/job"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tree is a small command with one verb that returns err.
func tree(err error) *cobra.Command {
	root := &cobra.Command{Use: "tool", RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	verb := &cobra.Command{Use: "status", RunE: func(*cobra.Command, []string) error { return err }}
	verb.Flags().Int("pass-count", 0, "")
	root.AddCommand(verb)
	root.SetOut(new(bytes.Buffer))
	return root
}

func TestExecute(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		args []string
		err  error
		code int
		line string
	}{
		"success":           {[]string{"status"}, nil, 0, ""},
		"no verb":           {nil, nil, 0, ""},
		"help":              {[]string{"status", "--help"}, nil, 0, ""},
		"misspelt verb":     {[]string{"statsu"}, nil, 2, "tool: unknown command \"statsu\", did you mean \"status\"?; `tool --help` lists the commands\n"},
		"unknown verb":      {[]string{"frobnicate"}, nil, 2, "tool: unknown command \"frobnicate\"; `tool --help` lists the commands\n"},
		"misspelt flag":     {[]string{"status", "--pas-count", "1"}, nil, 2, "tool: unknown flag: --pas-count, did you mean --pass-count?; `tool status --help` lists the flags\n"},
		"unknown flag":      {[]string{"status", "--frobnicate"}, nil, 2, "tool: unknown flag: --frobnicate; `tool status --help` lists the flags\n"},
		"unknown letter":    {[]string{"status", "-p"}, nil, 2, "tool: unknown shorthand flag: 'p' in -p; `tool status --help` lists the flags\n"},
		"impossible value":  {[]string{"status", "--pass-count", "many"}, nil, 2, ""},
		"extra argument":    {[]string{"status", "now"}, nil, 2, "tool: unexpected argument \"now\"; `tool status --help` shows the usage\n"},
		"plain failure":     {[]string{"status"}, errors.New("broken"), 1, "tool: broken\n"},
		"failure with code": {[]string{"status"}, fmt.Errorf("read: %w", job.Exitf(job.ExitData, "gone")), 6, "tool: read: gone\n"},
		"names of packages": {[]string{"status"}, errors.New("trainer: trainer: the job has failed"), 1, "tool: the job has failed\n"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stderr bytes.Buffer
			cmd := tree(c.err)
			require.Equal(t, c.code, Execute(t.Context(), cmd, c.args, &stderr))
			if c.line != "" || c.code == 0 {
				require.Equal(t, c.line, stderr.String())
			}
		})
	}
}

func TestFromEnvironment(t *testing.T) {
	t.Parallel()
	env := map[string]string{"STARFISH_ETCD_ENDPOINTS": "a:1,b:2", "STARFISH_NAME": "from-env", "STARFISH_EMPTY": "", "STARFISH_ETCD_TIMEOUT": "soon"}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	flags := func() (*pflag.FlagSet, *[]string, *string) {
		fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
		return fs, fs.StringSlice("etcd-endpoints", nil, ""), fs.String("name", "default", "")
	}
	fs, endpoints, name := flags()
	require.NoError(t, fs.Parse([]string{"--name", "from-flag"}))
	require.NoError(t, FromEnvironment(fs, lookup))
	require.Equal(t, []string{"a:1", "b:2"}, *endpoints)
	require.Equal(t, "from-flag", *name, "a flag that is given wins")

	fs, endpoints, _ = flags()
	Yield(fs, "etcd-endpoints", "name")
	require.NoError(t, fs.Parse([]string{"--name", "from-flag"}))
	require.NoError(t, FromEnvironment(fs, lookup))
	require.Empty(t, *endpoints, "one that is given excludes another's variable")

	fs, endpoints, _ = flags()
	Yield(fs, "etcd-endpoints", "name")
	require.NoError(t, FromEnvironment(fs, lookup))
	require.NotEmpty(t, *endpoints, "two variables do not exclude each other")

	fs, _, _ = flags()
	fs.String("empty", "default", "")
	fs.Duration("etcd-timeout", time.Second, "")
	err := FromEnvironment(fs, lookup)
	require.ErrorContains(t, err, `STARFISH_ETCD_TIMEOUT="soon"`)
	require.Equal(t, 2, job.ExitCode(err))
	require.Equal(t, "default", fs.Lookup("empty").Value.String(), "an empty variable is none")
}

func TestVariables(t *testing.T) {
	t.Parallel()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	fs.String("etcd-endpoints", "", "")
	fs.String("set", "", "")
	require.ElementsMatch(t, []string{"STARFISH_ETCD_ENDPOINTS", "STARFISH_SET"}, Variables(fs))
}

func TestLogger(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	for _, l := range []Logging{{"info", "text"}, {"warn", "json"}} {
		log, err := l.Logger(&b)
		require.NoError(t, err)
		log.WithField("shard", 3).Warn("hello")
	}
	require.Contains(t, b.String(), "msg=hello shard=3")
	require.Contains(t, b.String(), `"msg":"hello","shard":3`)
	for _, l := range []Logging{{"loud", "text"}, {"panic", "text"}, {"info", "xml"}} {
		_, err := l.Logger(&b)
		require.Equal(t, 2, job.ExitCode(err))
	}
}
