package history_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/campaign/history"
	"starfish/etcdqueue"
	"starfish/internal/membership"
	"starfish/internal/ranges"
	"starfish/internal/store"
)

// put is a change of a record to a value, as a watch delivers it.
func put(t *testing.T, key string, value any) store.Event {
	t.Helper()
	text, ok := value.([]byte)
	if !ok {
		var err error
		text, err = json.Marshal(value)
		require.NoError(t, err)
	}
	return store.Event{KV: store.KV{Key: key, Value: text, CreateRev: 1, ModRev: 1}}
}

func state(t *testing.T, s etcdqueue.State) store.Event {
	t.Helper()
	s.V, s.Lanes = 1, 1
	return put(t, "state", s)
}

// lane is a lane of four chunks: those that are pending, under one token, and
// complete; the others are Todo.
func lane(t *testing.T, pending string, token int64, complete string, batches int) store.Event {
	t.Helper()
	todo := ranges.Of(0, 3)
	entries := "[]"
	set := func(text string) (s ranges.Set) {
		require.NoError(t, json.Unmarshal([]byte(fmt.Sprintf("%q", text)), &s))
		return s
	}
	todo = todo.Minus(set(pending)).Minus(set(complete))
	if pending != "" {
		entries = fmt.Sprintf(`[{"at":%q,"owner":"t","incarnation":"i","token":%d,"beat":1}]`, pending, token)
	}
	return put(t, "queue/000000/0000", []byte(fmt.Sprintf(
		`{"v":1,"todo":%q,"pending":%s,"complete":%q,"failed":"","again":"","batches":%d,"records":0,"takes":0,"requeued":0,"reopened":0}`,
		todo.String(), entries, complete, batches)))
}

// overtaken is the lane of which somebody else has taken a chunk over, if it says so.
func overtaken(t *testing.T, speculated int) store.Event {
	t.Helper()
	return put(t, "queue/000000/0000", []byte(fmt.Sprintf(
		`{"v":1,"todo":"","pending":[{"at":"1-3","owner":"t","incarnation":"i","token":5,"beat":1},{"at":"0","owner":"u","incarnation":"j","token":7,"beat":1}],`+
			`"complete":"","failed":"","again":"","batches":0,"records":0,"takes":0,"requeued":0,"reopened":0,"speculated":%d}`, speculated)))
}

// registered is pserver p, under an incarnation.
func registered(t *testing.T, incarnation string) store.Event {
	t.Helper()
	return put(t, "pservers/p", map[string]any{"incarnation": incarnation})
}

func gone(key string) store.Event { return store.Event{Deleted: true, KV: store.KV{Key: key}} }

func owner(t *testing.T, incarnation string, generation int64, listed bool) store.Event {
	t.Helper()
	return put(t, "owners", membership.View{Shards: []membership.Owner{{Name: "p", Incarnation: incarnation, Generation: generation, Listed: listed}}}.Encode())
}

// handed is the record after from, who has the shard's n-th hand-over behind it.
func handed(t *testing.T, name, incarnation string, generation, n int64, from string) store.Event {
	t.Helper()
	return put(t, "owners", membership.View{Shards: []membership.Owner{
		{Name: name, Incarnation: incarnation, Generation: generation, HandOvers: n, From: from}}}.Encode())
}

func checkpointOf(t *testing.T, seq, generation, passes int) store.Event {
	t.Helper()
	return put(t, fmt.Sprintf("checkpoints/0000/%010d", seq), map[string]any{"generation": generation, "passes": passes})
}

// TestHistory: a history is judged revision by revision.
func TestHistory(t *testing.T) {
	t.Parallel()
	phase := func(p etcdqueue.Phase, reopened ...int) store.Event {
		return state(t, etcdqueue.State{Phase: p, Reopened: reopened})
	}
	training, draining := phase(etcdqueue.PhaseTraining), phase(etcdqueue.PhaseDraining)
	second := state(t, etcdqueue.State{Phase: etcdqueue.PhaseTraining, Pass: 1})
	floor := state(t, etcdqueue.State{Phase: etcdqueue.PhaseTraining, Pass: 1, Floor: 1})
	taken, done := lane(t, "0-3", 5, "", 0), lane(t, "", 0, "0-3", 4)
	first := []store.Event{registered(t, "a"), owner(t, "a", 1, false)}
	listed := []store.Event{registered(t, "a"), owner(t, "a", 1, true), checkpointOf(t, 1, 1, 1)}
	next := []store.Event{registered(t, "b"), owner(t, "b", 2, true)}
	cases := map[string]struct {
		revisions [][]store.Event
		wrong     string // of the last revision; empty: all is well
	}{
		"a job": {revisions: [][]store.Event{
			{training}, first, {lane(t, "0", 3, "", 0)}, {lane(t, "", 0, "0", 1)}, {owner(t, "a", 1, true), checkpointOf(t, 1, 1, 0)},
			next, {lane(t, "1-3", 4, "0", 1)}, {done}, {draining},
			{lane(t, "", 0, "0", 4), phase(etcdqueue.PhaseTraining, 0)}, {lane(t, "1-3", 9, "0", 4)}, {done}, {draining},
			{checkpointOf(t, 2, 2, 1)}, {phase(etcdqueue.PhaseComplete)},
		}},
		"a chunk in two places": {revisions: [][]store.Event{{training}, {put(t, "queue/000000/0000", []byte(
			`{"v":1,"todo":"0-3","pending":[],"complete":"0","failed":"","again":"","batches":0,"records":0,"takes":0,"requeued":0,"reopened":0}`))}},
			wrong: "not each of"},
		"a chunk leaves Complete by itself":   {revisions: [][]store.Event{{training}, {taken}, {lane(t, "", 0, "0-1", 2)}, {lane(t, "", 0, "0", 2)}}, wrong: "left Complete"},
		"a chunk is Complete by itself":       {revisions: [][]store.Event{{training}, {lane(t, "0", 5, "", 0)}, {lane(t, "0", 5, "1", 1)}}, wrong: "were not Pending"},
		"a token that was":                    {revisions: [][]store.Event{{training}, {lane(t, "0", 5, "", 0)}, {lane(t, "", 0, "", 0)}, {lane(t, "0", 5, "", 0)}}, wrong: "has token 5"},
		"an entry grows":                      {revisions: [][]store.Event{{training}, {lane(t, "0", 5, "", 0)}, {lane(t, "0-1", 5, "", 0)}}, wrong: "has grown"},
		"a Complete chunk is taken":           {revisions: [][]store.Event{{training}, {taken}, {done}, {lane(t, "0", 6, "1-3", 4), phase(etcdqueue.PhaseTraining, 0)}}, wrong: "not all of them were Todo"},
		"a chunk is overtaken":                {revisions: [][]store.Event{{training}, {taken}, {overtaken(t, 1)}}},
		"a chunk is taken from another":       {revisions: [][]store.Event{{training}, {taken}, {overtaken(t, 0)}}, wrong: "not all of them were Todo"},
		"sums go back":                        {revisions: [][]store.Event{{training}, {taken}, {lane(t, "1-3", 5, "0", 2)}, {lane(t, "2-3", 5, "0-1", 1)}}, wrong: "went back"},
		"a lane goes above the floor":         {revisions: [][]store.Event{{training}, {taken}, {gone("queue/000000/0000")}}, wrong: "above the floor"},
		"a lane goes below the floor":         {revisions: [][]store.Event{{training}, listed, {taken}, {done}, {second}, {floor, gone("queue/000000/0000")}}},
		"a lane comes back below the floor":   {revisions: [][]store.Event{{training}, listed, {taken}, {done}, {second}, {floor, gone("queue/000000/0000")}, {taken}}, wrong: "below the floor"},
		"the floor rises without checkpoints": {revisions: [][]store.Event{{training}, first, {taken}, {done}, {second}, {floor}}, wrong: "has no checkpoint"},
		"the floor rises above a checkpoint": {revisions: [][]store.Event{{training}, listed, {checkpointOf(t, 2, 1, 0)}, {taken}, {done}, {second}, {floor}},
			wrong: "covers 0 passes"},
		"a pass is left out":                       {revisions: [][]store.Event{{training}, {state(t, etcdqueue.State{Phase: etcdqueue.PhaseTraining, Pass: 2})}}, wrong: "came after"},
		"a pass is turned too early":               {revisions: [][]store.Event{{training}, {taken}, {second}}, wrong: "Todo or Pending"},
		"a pass is taken off the list too early":   {revisions: [][]store.Event{{phase(etcdqueue.PhaseTraining, 0)}, {taken}, {training}}, wrong: "not listed any more"},
		"it drains too early":                      {revisions: [][]store.Event{{training}, {taken}, {draining}}, wrong: "Todo or Pending"},
		"it is complete without checkpoints":       {revisions: [][]store.Event{{draining}, first, {phase(etcdqueue.PhaseComplete)}}, wrong: "the job is complete"},
		"it is complete by a checkpoint of before": {revisions: [][]store.Event{{draining}, listed, next, {phase(etcdqueue.PhaseComplete)}}, wrong: "the job is complete"},
		"it goes on after the end":                 {revisions: [][]store.Event{{phase(etcdqueue.PhaseComplete)}, {training}}, wrong: "after the end"},
		"a generation is left out":                 {revisions: [][]store.Event{first, {registered(t, "b"), owner(t, "b", 3, false)}}, wrong: "went from generation"},
		"an owner without a generation":            {revisions: [][]store.Event{first, {registered(t, "b"), owner(t, "b", 1, false)}}, wrong: "went from generation"},
		"a generation without an owner":            {revisions: [][]store.Event{first, {owner(t, "a", 2, false)}}, wrong: "went from generation"},
		"an owner who is not registered":           {revisions: [][]store.Event{{owner(t, "a", 1, false)}}, wrong: "is not registered"},
		"taken from the living": {revisions: [][]store.Event{first, {put(t, "pservers/q", map[string]any{"incarnation": "b"}), handed(t, "q", "b", 2, 0, "")}},
			wrong: "who is registered"},
		"an owner comes back":                      {revisions: [][]store.Event{first, {registered(t, "b"), owner(t, "b", 2, false)}, {registered(t, "a"), owner(t, "a", 3, false)}}, wrong: "owned by a again"},
		"an owner comes back that had handed over": {revisions: [][]store.Event{first, {registered(t, "b"), handed(t, "p", "b", 2, 1, "p")}, {registered(t, "a"), handed(t, "p", "a", 3, 1, "")}}},
		"an owner gives twice":                     {revisions: [][]store.Event{first, {registered(t, "b"), handed(t, "p", "b", 2, 2, "p")}}, wrong: "was handed over"},
		"somebody else gives":                      {revisions: [][]store.Event{first, {registered(t, "b"), handed(t, "p", "b", 2, 1, "q")}}, wrong: "was handed over"},
		"one that leaves is given to": {revisions: [][]store.Event{first, {put(t, "pservers/q", map[string]any{"incarnation": "b", "leaving": true}),
			handed(t, "q", "b", 2, 1, "p")}}, wrong: "who leaves"},
		"one that has one shard gives it": {revisions: [][]store.Event{first, {put(t, "pservers/q", map[string]any{"incarnation": "b"}),
			handed(t, "q", "b", 2, 1, "p")}}, wrong: "does not hold less"},
		"one that leaves gives it": {revisions: [][]store.Event{first, {put(t, "pservers/p", map[string]any{"incarnation": "a", "leaving": true})},
			{put(t, "pservers/q", map[string]any{"incarnation": "b"}), handed(t, "q", "b", 2, 1, "p")}}},
		"one whose lease has ended gives it": {revisions: [][]store.Event{first, {gone("pservers/p")},
			{put(t, "pservers/q", map[string]any{"incarnation": "b"}), handed(t, "q", "b", 2, 1, "p")}}},
		"checkpoints are forgotten":      {revisions: [][]store.Event{listed, {registered(t, "b"), owner(t, "b", 2, false)}}, wrong: "never had a checkpoint"},
		"a zombie lists a checkpoint":    {revisions: [][]store.Event{listed, next, {checkpointOf(t, 2, 1, 1)}}, wrong: "with generation 1"},
		"draining with a reopened chunk": {revisions: [][]store.Event{{training}, {phase(etcdqueue.PhaseDraining, 0)}}, wrong: "draining with"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := history.New(4, 1)
			h.Announced = true
			for i, events := range c.revisions {
				err := h.See(events)
				if i == len(c.revisions)-1 && c.wrong != "" {
					require.ErrorContains(t, err, c.wrong)
					return
				}
				require.NoError(t, err, "revision %d", i)
			}
		})
	}
}
