package api

import (
	"context"
	"fmt"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/health"
	"github.com/nodeagent/nodeagent/pkg/trace/messages"
	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/report"
	"github.com/nodeagent/nodeagent/pkg/trace/sli"
	"github.com/nodeagent/nodeagent/pkg/trace/store"
)

const (
	announceNote = "announced"
	settled      = 10 * time.Second // the verdicts of a minute are stored this long after it
	backlog      = 24 * time.Hour   // older misses are not announced
	perTurn      = 60               // minutes announced at once
)

// announcer is the state of Announce, for the goroutine that calls it.
type announcer struct {
	sent   *messages.Sent // nil: not read yet
	unkept bool           // it is not stored
	burnt  time.Time      // when the burn rates were computed last
	burns  []messages.Rule
}

// Announce tells the event center of the misses and changes since the last turn. The goroutine that writes to the store must
// call it regularly. It stores how far it came only after all events have arrived: until then, a program that starts makes the
// same events again, with the same IDs.
func (s *Server) Announce(ctx context.Context, now time.Time) error {
	a := &s.announcer
	if s.Sender == nil || !s.Store.Leads() {
		a.sent = nil
		return nil
	}
	if a.sent == nil {
		var read messages.Sent
		if err := s.Store.Note(ctx, announceNote, &read); err != nil {
			return err
		}
		a.sent, a.unkept = &read, false
	}
	rules, err := s.rules(ctx, now)
	if err != nil {
		return err
	}
	events, after, err := a.sent.Changes(s.Sender.Cluster, rules, now)
	if err == nil {
		err = s.Sender.Queue(events)
	}
	if err != nil {
		return err
	}
	a.sent, a.unkept = &after, a.unkept || len(events) > 0
	if err := s.announceMisses(ctx, now); err != nil || !a.unkept || !s.Sender.Idle() {
		return err
	}
	err = s.Store.SetNote(ctx, announceNote, a.sent)
	a.unkept = err != nil
	return err
}

// announceMisses announces the misses of past minutes after they are stored.
func (s *Server) announceMisses(ctx context.Context, now time.Time) error {
	sent := s.announcer.sent
	stored := time.Unix(0, s.saved.Load())
	if oldest := now.Add(-backlog).Truncate(time.Minute); sent.Minute.Before(oldest) {
		if sent.Minute.IsZero() {
			oldest = now.Add(-time.Minute).Truncate(time.Minute)
		}
		sent.Minute = oldest.UTC()
	}
	for range perTurn {
		end := sent.Minute.Add(time.Minute)
		if end.Add(settled).After(stored) {
			return nil
		}
		var misses []store.Row
		err := s.Store.MissesOf(ctx, sent.Minute, end, "", func(r store.Row) {
			if len(misses) < store.MaxMisses {
				misses = append(misses, r)
			}
		})
		if err != nil {
			return err
		}
		events, err := messages.Misses(s.Sender.Cluster, sent.Minute, misses)
		if err == nil {
			err = s.Sender.Queue(events)
		}
		if err != nil {
			return err
		}
		sent.Minute, s.announcer.unkept = end, true
	}
	return nil
}

// rules returns the rules whose level is known now. A blindness is announced when it has lasted: a start is none.
func (s *Server) rules(ctx context.Context, now time.Time) (rules []messages.Rule, err error) {
	state, nodes := s.Health(), s.NodeFaults()
	blind := state.Level == health.Unknown
	if !blind || now.Sub(state.Since) >= health.Hold {
		r := messages.Rule{Name: messages.Health, Level: state.Level}
		for _, c := range state.Causes {
			r.Causes = append(r.Causes, c.Text)
		}
		rules = append(rules, r)
	}
	if !nodes.AsOf.IsZero() {
		r := messages.Rule{Name: messages.NodesFailPods, Level: health.Healthy}
		for _, pool := range nodes.Mass {
			r.Level, r.Causes = health.Fatal, append(r.Causes, fmt.Sprintf("more than a fifth of the nodes of pool %q fail their pods", pool))
		}
		rules = append(rules, r)
	}
	if blind {
		return rules, nil
	}
	if a := &s.announcer; now.Sub(a.burnt) >= time.Minute {
		if a.burns, err = s.burnRates(ctx, now); err != nil {
			return nil, err
		}
		a.burnt = now
	}
	return append(rules, s.announcer.burns...), nil
}

// burnRates returns the rules of the error budget, as the alerts of the same names: the budget burns faster than it may
// by a factor, in a long and a short window.
func (s *Server) burnRates(ctx context.Context, now time.Time) (rules []messages.Rule, err error) {
	for _, b := range []struct {
		rule        string
		level       health.Level
		factor      float64
		long, short time.Duration
	}{
		{messages.BurnsFast, health.Fatal, 14.4, time.Hour, 5 * time.Minute},
		{messages.BurnsFast, health.Fatal, 6, 6 * time.Hour, 30 * time.Minute},
		{messages.Burns, health.Warning, 1, 72 * time.Hour, 6 * time.Hour},
	} {
		if n := len(rules); n == 0 || rules[n-1].Name != b.rule {
			rules = append(rules, messages.Rule{Name: b.rule, Level: health.Healthy})
		}
		rate, err := s.burnRate(ctx, now, b.short)
		if err == nil && rate > b.factor { // the long window is needed seldom
			rate, err = s.burnRate(ctx, now, b.long)
		}
		if err != nil {
			return nil, err
		}
		if r := &rules[len(rules)-1]; rate > b.factor {
			r.Level, r.Causes = b.level, append(r.Causes, fmt.Sprintf("in %s, the error budget burns %.1f times as fast as it may", b.long, rate))
		}
	}
	return rules, nil
}

// burnRate returns how many times as fast as it may the error budget of creations burns; 0 with too few samples.
func (s *Server) burnRate(ctx context.Context, now time.Time, window time.Duration) (float64, error) {
	counts, err := s.Store.Count(ctx, now, window, store.Filter{})
	if i := sli.Of(counts, record.Creation); i.Success != nil {
		return (1 - *i.Success) / (1 - report.Objective), err
	}
	return 0, err
}
