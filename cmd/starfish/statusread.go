package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"

	"golang.org/x/sync/errgroup"

	"starfish/checkpoint"
	"starfish/etcdqueue"
	"starfish/internal/cli"
	"starfish/internal/membership"
	"starfish/internal/store"
	"starfish/internal/transport"
	"starfish/job"
	"starfish/pserver/ledger"
	"starfish/pserver/pb"
)

// readStatus asks etcd and the job's processes how it stands.
func readStatus(ctx context.Context, f *found) (*jobStatus, error) {
	totals, state, err := f.queue.Totals(ctx)
	if err != nil {
		return nil, err
	}
	s := &jobStatus{about: aboutJob(f.job), Phase: state.Phase, Reason: cli.Plain(state.Reason), Pass: state.Pass,
		Passes: f.job.Spec.Train.Passes, Floor: state.Floor, Reopened: append([]int{}, state.Reopened...), Queue: totals}
	data, err := readData(ctx, f.queue)
	if err != nil {
		return nil, err
	}
	s.Chunks, s.Files, s.Unsplit = data.chunks, data.files, data.unsplit
	s.Progress = sight{passes: s.Passes, chunks: s.Chunks, complete: totals.Complete + totals.Failed}.fraction()
	if s.Failed, err = readFailed(ctx, f.queue); err != nil {
		return nil, err
	}
	if s.Shards, err = readShards(ctx, f); err != nil {
		return nil, err
	}
	if s.Pservers, err = readMembers(ctx, f.store, membership.PServers); err != nil {
		return nil, err
	}
	if s.Trainers, err = readMembers(ctx, f.store, membership.Trainers); err != nil {
		return nil, err
	}
	entries, err := readPending(ctx, f.queue, state)
	if err != nil {
		return nil, err
	}
	s.askMembers(ctx, transport.TCP)
	s.noteEntries(entries)
	s.full = errors.Is(store.TryWrite(ctx, f.store, "state"), store.ErrFull)
	s.Waits = s.waits(f.job.Spec.Run.Pservers)
	if state.Phase == etcdqueue.PhaseComplete {
		s.Result, err = readResult(ctx, f.store)
	}
	return s, err
}

func readShards(ctx context.Context, f *found) ([]shardStatus, error) {
	view, err := membership.ReadView(ctx, f.store)
	if err != nil {
		return nil, err
	}
	metas, _, err := checkpoint.ListAll(ctx, f.store, f.job.Parameters.Shards)
	if err != nil {
		return nil, err
	}
	shards := make([]shardStatus, len(view.Shards))
	for i, o := range view.Shards {
		s := shardStatus{Shard: i, Owner: o.Name, Address: o.Address, Generation: o.Generation}
		if i < len(metas) && len(metas[i]) > 0 {
			m := metas[i][0]
			s.Checkpoints, s.Path, s.Batches, s.Passes, s.SavedAt = len(metas[i]), m.Path, m.Batches, m.Passes, m.Timestamp
			s.current = m.Generation == o.Generation
			var sum ledger.Summary
			if json.Unmarshal(m.Ledger, &sum) == nil {
				s.memory = sum.Memory
			}
		}
		shards[i] = s
	}
	return shards, nil
}

func readMembers(ctx context.Context, st store.Store, role string) ([]memberStatus, error) {
	roster, err := membership.ReadRoster(ctx, st, role)
	if err != nil {
		return nil, err
	}
	members := []memberStatus{}
	for name, m := range roster.Members {
		members = append(members, memberStatus{Name: name, Incarnation: m.Incarnation, Address: m.Address, Version: m.Version, MaxMemory: m.MaxMemory, Stalled: m.Stalled})
	}
	sort.Slice(members, func(i, j int) bool { return members[i].Name < members[j].Name })
	return members, nil
}

// readPending reads what is in the hands of trainers.
func readPending(ctx context.Context, q *etcdqueue.Queue, state etcdqueue.State) ([]etcdqueue.Entry, error) {
	var entries []etcdqueue.Entry
	if state.Phase != etcdqueue.PhaseTraining {
		return nil, nil
	}
	const most = 16 // a few passes are reopened at a time
	for _, pass := range state.Takeable()[max(0, len(state.Takeable())-most):] {
		lanes, _, _, err := q.Lanes(ctx, pass)
		if ignore(err, etcdqueue.ErrNoPass) != nil {
			return nil, err
		}
		for _, l := range lanes {
			entries = append(entries, l.Pending...)
		}
	}
	return entries, nil
}

// askedAtOnce bounds the processes that are asked at one time.
const askedAtOnce = 32

// askMembers asks every registered process who it is, and the owners of shards
// for their sums.
func (s *jobStatus) askMembers(ctx context.Context, n transport.Network) {
	var g errgroup.Group
	g.SetLimit(askedAtOnce)
	for _, members := range [][]memberStatus{s.Pservers, s.Trainers} {
		for i := range members {
			m := &members[i]
			g.Go(func() error {
				err := identify(ctx, n, m.Address, m.Incarnation)
				m.Answers = err == nil
				if err != nil {
					m.Error = err.Error()
				}
				return nil
			})
		}
	}
	var owners []string
	for _, shard := range s.Shards {
		if shard.Owner != "" {
			owners = append(owners, shard.Address)
		}
	}
	stats, answered := statsOf(ctx, n, owners)
	_ = g.Wait() // what did not answer is noted
	s.noteStats(answered, stats)
}

// noteStats puts in what the owners have said. What a predecessor says, of
// another generation, counts for nothing.
func (s *jobStatus) noteStats(answered map[string]bool, stats map[int]*pb.ShardStats) {
	for i := range s.Shards {
		shard := &s.Shards[i]
		if shard.Owner == "" || !answered[shard.Address] {
			continue
		}
		st := stats[shard.Shard]
		serving := st != nil && st.Generation == shard.Generation
		shard.Serving = &serving
		if !serving {
			continue
		}
		shard.Ledger = &shardLedger{Batches: st.Batches, Skipped: st.Skipped, Lost: st.Lost, Losses: st.Losses, Duplicates: st.Duplicates,
			Replayed: st.Replayed, Rows: st.Rows, Bytes: st.Bytes}
		shard.Doing, shard.CheckpointError = cli.Plain(st.Doing), cli.Plain(st.CheckpointError)
		shard.Step, shard.WaitsFor = st.Step, cli.Plain(st.WaitsFor)
		s.saves.note(shard.Shard, shard.Owner, st)
		if !s.counted.known {
			s.counted = countOf(st)
		}
		for _, p := range st.Passes {
			if pass := int(p.Pass); p.Weight > 0 && (s.LossPass == nil || pass > *s.LossPass) {
				loss := p.Loss / p.Weight
				s.Loss, s.LossPass = &loss, &pass
			}
		}
	}
}

// ledgerCount is how far the ledger of one shard is.
type ledgerCount struct {
	known   bool
	batches int64
	// perBatch is the mean number of records of a batch.
	perBatch float64
}

func countOf(st *pb.ShardStats) ledgerCount {
	c := ledgerCount{batches: st.Batches + st.Skipped}
	var batches, records int64
	for _, p := range st.Passes {
		batches += p.Batches + p.Skipped
		records += p.Records
	}
	if c.known = batches > 0; c.known {
		c.perBatch = float64(records) / float64(batches)
	}
	return c
}

// noteEntries puts in what trainers have in hand.
func (s *jobStatus) noteEntries(entries []etcdqueue.Entry) {
	for i := range s.Trainers {
		m := &s.Trainers[i]
		for _, e := range entries {
			if e.Incarnation == m.Incarnation {
				m.Pending += e.At.Len()
				if e.Reason != "" {
					m.Waits = e.Reason
				}
			}
		}
	}
}

// waits says what the job waits for. pservers is how many are to come.
func (s *jobStatus) waits(pservers int) []string {
	waits := []string{}
	say := func(format string, args ...any) { waits = append(waits, fmt.Sprintf(format, args...)) }
	if s.Phase.Ended() {
		return waits
	}
	if s.full {
		say("%s", store.ErrFull.Error())
	}
	shards := func(is func(shardStatus) bool) string {
		var names []string
		for _, sh := range s.Shards {
			if is(sh) {
				names = append(names, fmt.Sprint(sh.Shard))
			}
		}
		return numbered("shard", "shards", names)
	}
	if len(s.Pservers) == 0 {
		say("no pserver is registered")
	} else if free := shards(func(sh shardStatus) bool { return sh.Owner == "" }); free != "" {
		say("nobody owns %s; %d of %d pservers are registered", free, len(s.Pservers), pservers)
	}
	if sizes := s.unheld(); sizes != "" {
		say("%s", sizes)
	}
	if s.Phase == etcdqueue.PhaseTraining && len(s.Trainers) == 0 {
		say("no trainer is registered")
	}
	registered := make(map[string]bool)
	for _, m := range s.Pservers {
		registered[m.Name] = true
	}
	if gone := shards(func(sh shardStatus) bool { return sh.Owner != "" && !registered[sh.Owner] }); gone != "" {
		say("the owner of %s is not registered any more", gone)
	}
	if restored := shards(func(sh shardStatus) bool { return sh.Serving != nil && !*sh.Serving }); restored != "" {
		say("%s not served yet", restored)
	}
	for _, m := range slices.Concat(s.Pservers, s.Trainers) {
		if !m.Answers {
			say("%s at %s: %s", m.Name, m.Address, m.Error)
		}
	}
	for _, m := range s.Trainers {
		if m.Waits != "" {
			say("%s waits for %s", m.Name, m.Waits)
		}
		if m.Stalled {
			say("a batch of %s does not get on; nobody waits for it", m.Name)
		}
	}
	said := make(map[string]bool)
	for _, one := range s.Shards {
		if one.WaitsFor != "" && !said[one.WaitsFor] {
			said[one.WaitsFor] = true
			say("%s on %s", one.WaitsFor, shards(func(sh shardStatus) bool { return sh.WaitsFor == one.WaitsFor }))
		}
	}
	if s.Phase == etcdqueue.PhaseDraining {
		if late := shards(func(sh shardStatus) bool { return !sh.current || sh.Passes < s.Passes }); late != "" {
			say("the last checkpoint of %s", late)
		} else {
			say("the steward's evaluation")
		}
	}
	if trouble := s.saves.trouble(); trouble != "" {
		say("%s", trouble)
	}
	return waits
}

// unheld names the sizes of the shards of nobody, and the memory limits of the
// pservers, if one has a limit.
func (s *jobStatus) unheld() string {
	var shards, limits []string
	for _, sh := range s.Shards {
		if sh.Owner == "" && sh.memory > 0 {
			shards = append(shards, fmt.Sprintf("shard %d takes %s", sh.Shard, job.Bytes(sh.memory).Short()))
		}
	}
	for _, m := range s.Pservers {
		if m.MaxMemory > 0 {
			limits = append(limits, fmt.Sprintf("%s %s", m.Name, job.Bytes(m.MaxMemory).Short()))
		}
	}
	if len(shards) == 0 || len(limits) == 0 {
		return ""
	}
	const most = 12
	return fmt.Sprintf("%s; memory limits: %s", strings.Join(shards[:min(len(shards), most)], ", "), strings.Join(limits[:min(len(limits), most)], ", "))
}

// numbered is "shard 3", or "shards 3, 4, 5" of which very many are not listed.
func numbered(one, many string, names []string) string {
	const most = 12
	switch n := len(names); {
	case n == 0:
		return ""
	case n == 1:
		return one + " " + names[0]
	case n > most:
		return fmt.Sprintf("%s %s and %d more", many, strings.Join(names[:most], ", "), n-most)
	}
	return many + " " + strings.Join(names, ", ")
}

// identify asks who answers at an address; nil if it is that incarnation.
func identify(ctx context.Context, n transport.Network, address, incarnation string) error {
	cc, err := transport.NewClient(n, address)
	if err != nil {
		return fmt.Errorf("does not answer: %w", err)
	}
	defer func() { _ = cc.Close() }()
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	r, err := pb.NewPServerClient(cc).Identify(ctx, &pb.IdentifyRequest{})
	if err != nil {
		return errNoAnswer
	}
	if r.Incarnation != incarnation {
		return errAnotherProcess
	}
	return nil
}
