package repair

import (
	"slices"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/internal/setting"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

// FleetBudget is the source of the slots for disruptive actions.
type FleetBudget string

// The fleet budgets.
const (
	Claims FleetBudget = "claims" // slots in the apiserver; without them no disruptive action runs
	None   FleetBudget = "none"   // any number of nodes may disrupt their pods at the same time
)

// Settings define which repairs may run, and how often. The zero value repairs no fault; see Defaults.
type Settings struct {
	// off, dry-run or on, by action; by default, disruptive actions are off and the rest dry-run
	Actions map[Name]release.Mode `yaml:"actions"`

	PerHour        int `yaml:"perHour"`        // budget: repairs that are begun in any hour
	PerDay         int `yaml:"perDay"`         // and in any day
	RestartsPerDay int `yaml:"restartsPerDay"` // restarts by each action in any day
	// after this many failed repairs within a day, repairs stop until the failures are older
	StopAfter int `yaml:"stopAfter"`

	MinAge       time.Duration `yaml:"minAge"`       // a finding must be believed for this long: its owner comes first
	VerifyWithin time.Duration `yaml:"verifyWithin"` // its check must stop finding it within this
	Hold         time.Duration `yaml:"hold"`         // and stay clear for this
	RetryAfter   time.Duration `yaml:"retryAfter"`   // after a failed repair, doubled with each further one
	UnitAge      time.Duration `yaml:"unitAge"`      // a service or container that is younger is still starting

	Windows     []Window    `yaml:"windows"`     // when disruptive repairs may begin; empty: always
	FleetBudget FleetBudget `yaml:"fleetBudget"` // claims, or none

	Units Units `yaml:"units"`

	DiskSpace DiskSpace `yaml:"diskSpace"` // the sources of free-disk-space

	// From the settings of the checks, which compare them.
	Sysctls    map[string]string        `yaml:"-"` // wanted values by name
	SysctlFile func(name string) string `yaml:"-"` // where a setting is; empty: it is no name
	Modules    []string                 `yaml:"-"`
	DaemonSets []string                 `yaml:"-"` // as namespace/name
}

// DiskSpace defines the data that free-disk-space may remove, and its target. Each source has its own switch.
type DiskSpace struct {
	// it stops when this much of the filesystem (percent of the whole) and of its inodes is free
	FreePercent      float64 `yaml:"freePercent"`
	FreeInodePercent float64 `yaml:"freeInodePercent"`

	Images bool `yaml:"images"` // images without a container
	// an image must have been observed without a container for this long, and for kubelet's imageMinimumGCAge
	ImageAge time.Duration `yaml:"imageAge"`

	Journal           bool   `yaml:"journal"`           // archived files of systemd's journal
	JournalFloorBytes uint64 `yaml:"journalFloorBytes"` // this much of them is always kept

	CoreDumps   bool          `yaml:"coreDumps"`   // files of systemd-coredump
	CoreDumpAge time.Duration `yaml:"coreDumpAge"` // unchanged for this long, as files tell and as observed

	Quarantine bool `yaml:"quarantine"` // objects in quarantine for longer than remediate.quarantine.keep
}

// any reports whether any source may be used.
func (d DiskSpace) any() bool { return d.Images || d.Journal || d.CoreDumps || d.Quarantine }

// Validate returns the invalid keys of d.
func (d DiskSpace) Validate() error {
	wrong := setting.Mistakes{}
	for key, percent := range map[string]float64{"freePercent": d.FreePercent, "freeInodePercent": d.FreeInodePercent} {
		wrong.Check(key, percent >= 0 && percent <= 50, "must be between 0 and 50") // NaN is neither
	}
	wrong.Check("imageAge", d.ImageAge >= time.Minute, "must be at least %s", time.Minute)
	wrong.Check("coreDumpAge", d.CoreDumpAge >= time.Hour, "must be at least %s", time.Hour)
	wrong.Check("journalFloorBytes", d.JournalFloorBytes >= 16<<20, "must be at least 16 MiB")
	return wrong.OrNil()
}

// Units names the services of this node. By default they are those of the detected distribution, or none if its
// services run more than kubelet or the runtime.
type Units struct {
	Kubelet string `yaml:"kubelet"`
	Runtime string `yaml:"runtime"`
}

// Defaults returns the settings of a new installation: no repair is on.
func Defaults() Settings {
	return Settings{
		Actions: map[Name]release.Mode{}, PerHour: 3, PerDay: 10, RestartsPerDay: 2, StopAfter: 3,
		MinAge: 2 * time.Minute, VerifyWithin: 2 * time.Minute, Hold: 5 * time.Minute, RetryAfter: 30 * time.Minute,
		UnitAge: 5 * time.Minute, Windows: []Window{}, FleetBudget: Claims,
		DiskSpace: DiskSpace{FreePercent: 25, FreeInodePercent: 10, ImageAge: 2 * time.Minute,
			JournalFloorBytes: 512 << 20, CoreDumpAge: 3 * day},
	}
}

// ModeOf returns how far an action may go.
func (s Settings) ModeOf(a Action) release.Mode {
	if mode, ok := s.Actions[a.Name]; ok {
		return mode
	}
	if a.Disrupts {
		return release.Off
	}
	return release.DryRun
}

// Validate returns the invalid keys of s.
func (s Settings) Validate() error {
	wrong := setting.Mistakes{}
	for name, mode := range s.Actions {
		known := slices.ContainsFunc(Actions(), func(a Action) bool { return a.Name == name })
		wrong.Check("actions."+string(name), known, "there is no such action")
		wrong.Add("actions."+string(name), mode.Validate())
	}
	wrong.Check("fleetBudget", s.FleetBudget == Claims || s.FleetBudget == None, "%q: must be claims or none", s.FleetBudget)
	wrong.Check("stopAfter", s.StopAfter >= 1, "must be at least 1")
	wrong.Add("diskSpace", s.DiskSpace.Validate())
	for i, w := range s.Windows {
		wrong.Add("windows."+strconv.Itoa(i), w.Validate())
	}
	wrong.Check("hold", s.Hold <= time.Hour, "must be at most 1h")
	wrong.Check("verifyWithin", s.VerifyWithin <= time.Hour, "must be at most 1h")
	return wrong.OrNil()
}
