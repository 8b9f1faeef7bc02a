package main

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"starfish/etcdqueue"
	"starfish/internal/membership"
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

// lane is a lane of four chunks, of which some are complete.
func lane(t *testing.T, complete string, batches int) store.Event {
	t.Helper()
	todo := map[string]string{"": "0-3", "0": "1-3", "0-1": "2-3", "0-3": ""}[complete]
	return put(t, "queue/000000/0000", []byte(fmt.Sprintf(
		`{"v":1,"todo":%q,"pending":[],"complete":%q,"failed":"","again":"","batches":%d,"records":0,"takes":0,"requeued":0,"reopened":0}`,
		todo, complete, batches)))
}

func owner(t *testing.T, incarnation string, generation int64, listed bool) store.Event {
	t.Helper()
	return put(t, "owners", membership.View{Shards: []membership.Owner{
		{Name: "p" + incarnation, Incarnation: incarnation, Generation: generation, Listed: listed}}}.Encode())
}

// handed is the record after the shard's n-th hand-over, by from.
func handed(t *testing.T, incarnation string, generation, n int64, from string) store.Event {
	t.Helper()
	return put(t, "owners", membership.View{Shards: []membership.Owner{
		{Name: "p" + incarnation, Incarnation: incarnation, Generation: generation, HandOvers: n, From: from}}}.Encode())
}

// registered is the registration of the one that has an incarnation.
func registered(t *testing.T, incarnation string, leaving bool) store.Event {
	t.Helper()
	return put(t, "pservers/p"+incarnation, map[string]any{"v": 1, "incarnation": incarnation, "leaving": leaving})
}

// TestHistory: a history is judged revision by revision.
func TestHistory(t *testing.T) {
	t.Parallel()
	training := state(t, etcdqueue.State{Phase: etcdqueue.PhaseTraining})
	there := []store.Event{registered(t, "a", false), registered(t, "b", false)}
	cases := map[string]struct {
		revisions [][]store.Event
		wrong     string // of the last revision; empty: all is well
	}{
		"a job": {revisions: [][]store.Event{
			{training}, {owner(t, "a", 1, false)}, {lane(t, "0", 1)}, {owner(t, "a", 1, true), put(t, "checkpoints/0000/1", map[string]any{"generation": 1})},
			{owner(t, "b", 2, true)}, {lane(t, "0-3", 4)}, {state(t, etcdqueue.State{Phase: etcdqueue.PhaseDraining})},
			{lane(t, "0", 4), state(t, etcdqueue.State{Phase: etcdqueue.PhaseTraining, Reopened: []int{0}})},
		}},
		"a chunk in two places": {revisions: [][]store.Event{{training}, {put(t, "queue/000000/0000", []byte(
			`{"v":1,"todo":"0-3","pending":[],"complete":"0","failed":"","again":"","batches":0,"records":0,"takes":0,"requeued":0,"reopened":0}`))}},
			wrong: "not each of"},
		"a chunk leaves Complete by itself": {revisions: [][]store.Event{{training}, {lane(t, "0-1", 2)}, {lane(t, "0", 2)}}, wrong: "left Complete"},
		"sums go back":                      {revisions: [][]store.Event{{training}, {lane(t, "0", 2)}, {lane(t, "0-1", 1)}}, wrong: "went back"},
		"a lane goes above the floor": {revisions: [][]store.Event{{training}, {lane(t, "0", 2)},
			{{Deleted: true, KV: store.KV{Key: "queue/000000/0000"}}}}, wrong: "above the floor"},
		"a lane goes below the floor": {revisions: [][]store.Event{{training}, {lane(t, "0", 2)},
			{state(t, etcdqueue.State{Phase: etcdqueue.PhaseTraining, Pass: 1, Floor: 1})}, {{Deleted: true, KV: store.KV{Key: "queue/000000/0000"}}}}},
		"a pass is left out":                       {revisions: [][]store.Event{{training}, {state(t, etcdqueue.State{Phase: etcdqueue.PhaseTraining, Pass: 2})}}, wrong: "came after"},
		"it goes on after the end":                 {revisions: [][]store.Event{{state(t, etcdqueue.State{Phase: etcdqueue.PhaseComplete})}, {training}}, wrong: "after the end"},
		"a generation is left out":                 {revisions: [][]store.Event{{owner(t, "a", 1, false)}, {owner(t, "b", 3, false)}}, wrong: "went from generation"},
		"an owner without a generation":            {revisions: [][]store.Event{{owner(t, "a", 1, false)}, {owner(t, "b", 1, false)}}, wrong: "went from generation"},
		"a generation without an owner":            {revisions: [][]store.Event{{owner(t, "a", 1, false)}, {owner(t, "a", 2, false)}}, wrong: "went from generation"},
		"an owner comes back":                      {revisions: [][]store.Event{{owner(t, "a", 1, false)}, {owner(t, "b", 2, false)}, {owner(t, "a", 3, false)}}, wrong: "owned by a again"},
		"an owner comes back that had handed over": {revisions: [][]store.Event{there, {owner(t, "a", 1, false)}, {registered(t, "a", true)}, {handed(t, "b", 2, 1, "pa")}, {handed(t, "a", 3, 1, "")}}},
		"an owner gives twice":                     {revisions: [][]store.Event{there, {owner(t, "a", 1, false)}, {handed(t, "b", 2, 2, "pa")}}, wrong: "was handed over"},
		"somebody else gives":                      {revisions: [][]store.Event{there, {owner(t, "a", 1, false)}, {handed(t, "b", 2, 1, "pc")}}, wrong: "was handed over"},
		"one that has one shard gives it":          {revisions: [][]store.Event{there, {owner(t, "a", 1, false)}, {handed(t, "b", 2, 1, "pa")}}, wrong: "does not hold less"},
		"one that leaves is given a shard": {revisions: [][]store.Event{there, {owner(t, "a", 1, false)}, {registered(t, "a", true), registered(t, "b", true)}, {handed(t, "b", 2, 1, "pa")}},
			wrong: "is not there or leaving"},
		"one that is gone is given a shard": {revisions: [][]store.Event{there, {owner(t, "a", 1, false)}, {registered(t, "a", true)},
			{{Deleted: true, KV: store.KV{Key: "pservers/pb"}}}, {handed(t, "b", 2, 1, "pa")}}, wrong: "is not there or leaving"},
		"one that is gone gives a shard": {revisions: [][]store.Event{there, {owner(t, "a", 1, false)}, {{Deleted: true, KV: store.KV{Key: "pservers/pa"}}},
			{handed(t, "b", 2, 1, "pa")}}, wrong: "who is not there"},
		"checkpoints are forgotten":      {revisions: [][]store.Event{{owner(t, "a", 1, true)}, {owner(t, "b", 2, false)}}, wrong: "never had a checkpoint"},
		"a zombie lists a checkpoint":    {revisions: [][]store.Event{{owner(t, "a", 1, true)}, {owner(t, "b", 2, true)}, {put(t, "checkpoints/0000/1", map[string]any{"generation": 1})}}, wrong: "with generation 1"},
		"draining with a reopened chunk": {revisions: [][]store.Event{{training}, {state(t, etcdqueue.State{Phase: etcdqueue.PhaseDraining, Reopened: []int{0}})}}, wrong: "draining with"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHistory(4, 1)
			for i, events := range c.revisions {
				err := h.see(events)
				if i == len(c.revisions)-1 && c.wrong != "" {
					require.ErrorContains(t, err, c.wrong)
					return
				}
				require.NoError(t, err, "revision %d", i)
			}
		})
	}
}
