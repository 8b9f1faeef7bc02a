package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/internal/store"
	"starfish/job"
)

func TestSubmit(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	spec := small(t, "first", map[string]string{"data": twoLines}, "train: {passes: 3}", "shards: 2")
	var a, b submitted
	g.ask(&a, "submit", "-f", spec)
	require.True(t, a.Created)
	require.Equal(t, "first", a.Job)
	require.Equal(t, 1, a.V)
	require.EqualValues(t, 1, a.Chunks)
	require.Equal(t, 1, *a.Files)
	require.Equal(t, 3, a.Passes)
	require.Equal(t, 2, a.Shards)
	require.Empty(t, a.Unsplit)
	j, err := job.Load(t.Context(), g.job("first"))
	require.NoError(t, err)
	require.Equal(t, j.UUID.String(), a.UUID)

	g.ask(&b, "submit", "-f", spec)
	require.False(t, b.Created)
	require.Equal(t, a.UUID, b.UUID)
	require.Equal(t, "job first is there already, with the same spec ("+a.UUID+")\n", g.says("submit", "-f", spec))
	g.call("submit", "-f", spec, "--set", "train.passes=4").
		refuses(2, "the job exists with another spec: train.passes: 3 in the job, 4 here")

	zipped := small(t, "zipped", map[string]string{"data.gz": "\x1f\x8b\x08"})
	text := g.says("submit", "-f", zipped)
	require.Contains(t, text, "): 1 pass of 1 chunk, 4 shards\n")
	require.Contains(t, text, "data.gz is compressed and so is one chunk (3 B)\n")
	require.Contains(t, text, "pservers and trainers that are started with --job zipped work on it\n")
}

func TestJobs(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	require.Equal(t, "no jobs\n", g.says("jobs"))
	for _, name := range []string{"b", "a-1", "a", "aa"} {
		g.says("submit", "-f", small(t, name, map[string]string{"data": twoLines}, "train: {passes: 3}"))
	}
	write(t, g.job("rest"), store.Put("queue/000000/0001", []byte("{}"), 0))
	write(t, g.job("later"), store.Put(job.KeySpec, []byte(`{"v":7}`), 0))
	write(t, g.store, store.Put("/starfish/stray", nil, 0))
	var list jobList
	g.ask(&list, "jobs")
	var names []string
	for _, l := range list.Jobs {
		names = append(names, l.Job)
	}
	require.Equal(t, []string{"a-1", "a", "aa", "b", "later", "rest"}, names)
	require.Equal(t, jobLine{Job: "a", UUID: list.Jobs[1].UUID, Phase: "training", Passes: 3}, list.Jobs[1])
	require.Equal(t, "the record spec has version 7; this program knows 1", list.Jobs[4].Error)
	text := g.says("jobs")
	require.Contains(t, text, "b      training  1 of 3  0%    0        0         0\n")
	require.Contains(t, text, "rest   only remains of a job: `starfish delete` removes them\n")

	g.call("status", "--job", "bb").refuses(2, `there is no job "bb", did you mean "b"?`)
	g.call("status", "--job", "nothing-like-it").refuses(2, `there is no job "nothing-like-it"`)
	c := newCall(t, "__complete", "status", "--etcd-endpoints", g.endpoints, "--job", "").succeed()
	require.Equal(t, "a-1\na\naa\nb\nlater\nrest\n:4\n", c.stdout.String())
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	for shell, says := range map[string]string{"bash": "__start_starfish", "zsh": "#compdef starfish", "fish": "complete -c starfish", "powershell": "Register-ArgumentCompleter"} {
		require.Contains(t, newCall(t, "completion", shell).succeed().stdout.String(), says)
	}
	const shells = "bash, fish, powershell, zsh"
	newCall(t, "completion").refuses(2, "name one shell: "+shells)
	newCall(t, "completion", "bsh").refuses(2, `unknown shell "bsh", did you mean "bash"?; there are `+shells)
	newCall(t, "completion", "cmd").refuses(2, `unknown shell "cmd"; there are `+shells)
	require.Equal(t, "text\njson\n:4\n", newCall(t, "__complete", "status", "-o", "").succeed().stdout.String())
	nowhere := newCall(t, "__complete", "status", "--etcd-endpoints", "127.0.0.1:1", "--job", "").succeed()
	require.Equal(t, ":4\n", nowhere.stdout.String(), "an etcd that does not answer")
}

func TestVersion(t *testing.T) {
	t.Parallel()
	var a versionAnswer
	decodeStrictly(t, newCall(t, "version", "-o", "json").succeed(), &a)
	require.Equal(t, 1, a.V)
	require.NotEmpty(t, a.Version)
	require.Contains(t, a.Platform, "/")
	newCall(t, "version", "-o", "yaml").refuses(2, `-o "yaml" is neither text nor json`)
}
