package repair

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/pkg/remediate"
)

// FleetBudget is where the slots for what disrupts come from.
type FleetBudget string

// The fleet budgets.
const (
	Claims FleetBudget = "claims" // slots in the apiserver; without them nothing disruptive is done
	None   FleetBudget = "none"   // any number of nodes may disrupt their pods at the same time
)

// Settings define what may be repaired, and how often. The zero value repairs nothing; see Defaults.
type Settings struct {
	// off, dry-run or on, by action; of those not named, what disrupts is off, and the rest dry-run
	Actions map[Name]remediate.Mode `yaml:"actions"`

	PerHour        int `yaml:"perHour"`        // budget: repairs that are begun in any hour
	PerDay         int `yaml:"perDay"`         // and in any day
	RestartsPerDay int `yaml:"restartsPerDay"` // restarts by each action in any day
	// after so many failed repairs in a day nothing more is done until they are older
	StopAfter int `yaml:"stopAfter"`

	MinAge       time.Duration `yaml:"minAge"`       // a finding must have been believed this long: its owner comes first
	VerifyWithin time.Duration `yaml:"verifyWithin"` // its check must stop finding it within this
	Hold         time.Duration `yaml:"hold"`         // and go on not finding it for this
	RetryAfter   time.Duration `yaml:"retryAfter"`   // after a failed repair, doubled with each further one
	UnitAge      time.Duration `yaml:"unitAge"`      // a service or container that is younger is still starting

	Windows     []Window    `yaml:"windows"`     // when disruptive repairs may begin; empty: always
	FleetBudget FleetBudget `yaml:"fleetBudget"` // claims, or none

	Units Units `yaml:"units"`

	// From the settings of the checks, which compare them.
	Sysctls    map[string]string        `yaml:"-"` // wanted values by name
	SysctlFile func(name string) string `yaml:"-"` // where a setting is; empty: it is no name
	Modules    []string                 `yaml:"-"`
	DaemonSets []string                 `yaml:"-"` // as namespace/name
}

// Units names the services of this node.
type Units struct {
	Kubelet string `yaml:"kubelet"`
	Runtime string `yaml:"runtime"` // by the name of the CRI socket unless set
}

// Defaults returns the settings of a new installation: nothing is done.
func Defaults() Settings {
	return Settings{
		Actions: map[Name]remediate.Mode{}, PerHour: 3, PerDay: 10, RestartsPerDay: 2, StopAfter: 3,
		MinAge: 2 * time.Minute, VerifyWithin: 2 * time.Minute, Hold: 5 * time.Minute, RetryAfter: 30 * time.Minute,
		UnitAge: 5 * time.Minute, Windows: []Window{}, FleetBudget: Claims, Units: Units{Kubelet: "kubelet.service"},
	}
}

// ModeOf returns how far an action may go.
func (s Settings) ModeOf(a Action) remediate.Mode {
	if mode, ok := s.Actions[a.Name]; ok {
		return mode
	}
	if a.Disrupts {
		return remediate.Off
	}
	return remediate.DryRun
}

// Problems returns what is wrong with s, by key.
func (s Settings) Problems() map[string]string {
	problems := map[string]string{}
	for name, mode := range s.Actions {
		if !slices.ContainsFunc(Actions(), func(a Action) bool { return a.Name == name }) {
			problems["actions."+string(name)] = "there is no such action"
		} else if !slices.Contains([]remediate.Mode{remediate.Off, remediate.DryRun, remediate.On}, mode) {
			problems["actions."+string(name)] = fmt.Sprintf("%q: must be off, dry-run or on", mode)
		}
	}
	if s.FleetBudget != Claims && s.FleetBudget != None {
		problems["fleetBudget"] = fmt.Sprintf("%q: must be claims or none", s.FleetBudget)
	}
	if s.StopAfter < 1 {
		problems["stopAfter"] = "must be at least 1"
	}
	for i, w := range s.Windows {
		if why := w.problem(); why != "" {
			problems["windows."+strconv.Itoa(i)] = why
		}
	}
	for key, d := range map[string]time.Duration{"hold": s.Hold, "verifyWithin": s.VerifyWithin} {
		if d > time.Hour {
			problems[key] = "must be at most 1h"
		}
	}
	return problems
}
