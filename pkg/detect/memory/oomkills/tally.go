package oomkills

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

const (
	oomKey        = "oom-kills/state"
	maxOOMTallies = 500 // subjects kept; kills of further ones are in the log only
	maxOOMTimes   = 100 // times kept for one subject
)

// oomState survives a restart of the agent, but not of the machine.
type oomState struct {
	Boot    string               `json:"boot"`
	Counted bool                 `json:"counted"`
	Total   uint64               `json:"total"`
	Counts  map[string]oomCounts `json:"counts"` // by cgroup; zeros are left out
	Tallies map[string]*oomTally `json:"tallies"`
}

// oomTally is the record of one subject. Its key is the pod's UID, a cgroup, or "" for the node.
type oomTally struct {
	Pod     string          `json:"pod,omitempty"` // UID
	Name    string          `json:"name,omitempty"`
	Victims []string        `json:"victims"` // containers of the pod, or pods and services
	Times   []time.Duration `json:"times"`   // uptimes of kills, the last ones
	Count   int             `json:"count"`   // of all kills while it is reported
	Gone    bool            `json:"gone"`    // only removed pods or services below it, for their own limits
}

// load reads the counts of an earlier agent since this boot.
func (m *oomCheck) load(boot string) {
	if m.loaded && m.state.Boot == boot {
		return
	}
	m.loaded = true
	m.state, _ = m.saved.Load(func(s oomState) bool { return s.Boot == boot && len(s.Tallies) <= maxOOMTallies })
	m.state.Boot = boot
	maps.DeleteFunc(m.state.Tallies, func(_ string, t *oomTally) bool { return t == nil || len(t.Times) == 0 })
	if m.state.Tallies == nil {
		m.state.Tallies = map[string]*oomTally{}
	}
}

// add tallies kills under the limit that caused them.
func (s *oomState) add(kills oomKills, now time.Duration) {
	for _, k := range kills {
		key := k.limit
		if k.own && k.victim.pod != "" {
			key = k.victim.pod
		}
		t := s.Tallies[key]
		if t == nil {
			if len(s.Tallies) >= maxOOMTallies {
				continue
			}
			t = &oomTally{Name: key, Gone: true}
			s.Tallies[key] = t
		}
		t.Gone = t.Gone && k.gone && k.own
		victims := []string{k.victimName}
		if key == k.victim.pod && key != "" {
			t.Pod, t.Name, victims = key, k.victimName, k.containers
		}
		for _, v := range victims {
			if !slices.Contains(t.Victims, v) && len(t.Victims) < 20 {
				t.Victims = append(t.Victims, v)
			}
		}
		t.Count += k.times
		for range k.times {
			t.Times = append(t.Times, now)
		}
		t.Times = t.Times[max(0, len(t.Times)-maxOOMTimes):]
	}
}

// expire drops old kills.
func (s *oomState) expire(now time.Duration) {
	maps.DeleteFunc(s.Tallies, func(_ string, t *oomTally) bool {
		keep := oomFor
		if t.Pod != "" {
			keep = oomPodFor
		}
		return now-t.Times[len(t.Times)-1] > keep
	})
}

func (s *oomState) findings(node string, now time.Duration) []finding.Finding {
	var all []finding.Finding
	for key, t := range s.Tallies {
		all = append(all, t.finding(key, node, now))
	}
	slices.SortFunc(all, finding.Compare)
	return all
}

// finding reports one tally.
func (t *oomTally) finding(key, node string, now time.Duration) finding.Finding {
	lately := 0
	for _, at := range t.Times {
		if now-at <= oomEscalateWithin {
			lately++
		}
	}
	f := finding.Finding{
		Severity: finding.Warning,
		Facts:    map[string]string{"kills": strconv.Itoa(t.Count), "killsLately": strconv.Itoa(lately)},
	}
	times := fmt.Sprintf("killed %d times", t.Count)
	if t.Count == 1 {
		times = "killed once"
	}
	switch {
	case t.Pod != "":
		f.Subject = finding.Subject{Kind: rules.PodKind, Name: t.Pod, UID: t.Pod}
		f.Reason, f.Facts["pods"] = "ContainerOOMKilled", t.Name
		f.Message = fmt.Sprintf("%s reached its memory limit: %s", t.Name, times)
		if len(t.Victims) > 0 {
			f.Facts["containers"] = strings.Join(t.Victims, ", ")
			f.Message += ", in container " + finding.JoinFirst(t.Victims, 3)
		}
		if lately < oomEscalate {
			f.Severity = finding.Info
		}
	case t.Gone && !strings.Contains(key, "kubepods"): // systemd re-creates the cgroup of a service that it restarts
		f.Subject, f.Reason = finding.Subject{Kind: "cgroup", Name: key}, "CgroupOOMKilled"
		f.Message = fmt.Sprintf("a service below %s that has ended or restarted reached its memory limit: %s",
			checkkit.Sanitize(key, checkkit.MaxLine), times)
	case t.Gone:
		f.Subject, f.Severity = finding.Subject{Kind: "cgroup", Name: key}, finding.Info
		f.Reason = "ContainerOOMKilled"
		f.Message = fmt.Sprintf("a pod below %s that has been removed reached its memory limit: %s",
			checkkit.Sanitize(key, checkkit.MaxLine), times)
	case key != "":
		f.Subject = finding.Subject{Kind: "cgroup", Name: key}
		f.Reason, f.Facts["victims"] = "CgroupOOMKilled", finding.JoinFirst(t.Victims, 10)
		f.Message = fmt.Sprintf("%s reached its memory limit: %s, in %s", checkkit.Sanitize(key, checkkit.MaxLine),
			times, finding.JoinFirst(t.Victims, 3))
	default:
		f.Subject = finding.Subject{Kind: "node", Name: node}
		f.Reason, f.Facts["victims"] = "OOMKilling", finding.JoinFirst(t.Victims, 10)
		f.Message = fmt.Sprintf("the node ran out of memory: %s, in %s", times, finding.JoinFirst(t.Victims, 3))
		if lately >= oomEscalate {
			f.Severity = finding.Fatal
		}
	}
	return f
}
