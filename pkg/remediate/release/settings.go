package release

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/setting"
	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release/actions"
)

// Mode is how far an action may go.
type Mode string

// The modes.
const (
	Off    Mode = "off"     // not even planned
	DryRun Mode = "dry-run" // planned and reported, never done
	On     Mode = "on"
)

// Validate reports a mode that does not exist.
func (m Mode) Validate() error {
	if m != Off && m != DryRun && m != On {
		return fmt.Errorf("%q: must be off, dry-run or on", m)
	}
	return nil
}

// Settings define which objects may be released, and how. The zero value releases none; see Defaults.
type Settings struct {
	// Off switches all releases off; the other modes apply to kinds that are not in Kinds.
	Mode  Mode                 `yaml:"mode"`
	Kinds map[object.Kind]Mode `yaml:"kinds"` // by kind
	// Attended: a person asks for the release now; then Mode applies to opt-in kinds too.
	Attended bool `yaml:"-"`

	PodsPerHour int `yaml:"podsPerHour"` // budget: pods released in any hour
	// after this many pods in a row with a failed release, releases stop for a day; also for one pod, after this many
	// failures
	StopAfter  int      `yaml:"stopAfter"`
	OptOut     []string `yaml:"optOut"`     // namespaces whose pods are never touched
	OptOutPods []string `yaml:"optOutPods"` // selectors of labels of pods that are never touched
	KillSwitch string   `yaml:"killSwitch"` // while this file exists, no change is made
	Lock       string   `yaml:"lock"`       // only one process on the node releases at a time
	// move the data of disk-backed emptyDirs to quarantine: it is user data
	AllowEmptyDir bool `yaml:"allowEmptyDir"`
	UnmountCSI    bool `yaml:"unmountCSI"`   // unmount CSI volumes even if their driver is alive: it owns them
	ForceNetwork  bool `yaml:"forceNetwork"` // remove a network namespace even if CNI DEL failed

	Quarantine QuarantineSettings `yaml:"quarantine"` // limits of the quarantine

	// for kubelet and the runtime to finish after each group of steps
	OwnerGrace     time.Duration `yaml:"ownerGrace"`
	ContainerGrace time.Duration `yaml:"containerGrace"` // between a container's stop signal and SIGKILL
	ProcessGrace   time.Duration `yaml:"processGrace"`   // between SIGTERM and SIGKILL
	VerifyWithin   time.Duration `yaml:"verifyWithin"`   // a step must show its effect within this
	// wait before an incompletely released pod is tried again
	RetryAfter time.Duration `yaml:"retryAfter"`
}

// defaultLock is not in the runtime directory of a service: systemd removes that directory, with the lock, when the
// service ends. Earlier versions had their lock there (formerLock); such an agent may still be running during an
// update, so both are taken.
const (
	defaultLock = "/run/nodeagent-release.lock"
	formerLock  = "/run/nodeagent/release.lock"
)

// locks are the files that must be locked during a release.
func (s Settings) locks() []string {
	if s.Lock == defaultLock || s.Lock == formerLock {
		return []string{defaultLock, formerLock}
	}
	return []string{s.Lock}
}

// LockNode takes the lock of releases, and with it the directory of their journal. ErrBusy during a release.
func (s Settings) LockNode(stateDir string) (*mutate.ReleaseLock, error) {
	return mutate.Lock(append(s.locks(), stateDir)...)
}

// optedOut returns why no object of a namespace may be released. If any is opted out, an unknown one may be it.
func (s Settings) optedOut(namespace string) string {
	switch {
	case len(s.OptOut) == 0:
		return ""
	case namespace == "":
		return fmt.Sprintf("its namespace is not known, and namespaces are opted out (%s)",
			strings.Join(s.OptOut, ", "))
	case slices.Contains(s.OptOut, namespace):
		return fmt.Sprintf("namespace %s is opted out", namespace)
	}
	return ""
}

// podOptedOut returns why no object of the pod may be released, by its annotation and labels. If any labels are opted
// out, unknown ones may be those. An unknown annotation does not count: otherwise no pod would ever be released.
func (s Settings) podOptedOut(o object.Object) string {
	switch {
	case o.OptOut != "":
		return o.OptOut
	case len(s.OptOutPods) > 0 && !o.LabelsKnown:
		return fmt.Sprintf("the labels of its pod are not known, and pods are opted out by theirs (%s)",
			strings.Join(s.OptOutPods, "; "))
	}
	return ""
}

// QuarantineSettings limit the data that is moved away instead of deleted.
type QuarantineSettings struct {
	MaxBytes uint64 `yaml:"maxBytes"` // data that does not fit stays in place
	// then the agent removes the entry, a day after it reported that; 0: never
	Keep time.Duration `yaml:"keep"`
}

// Defaults returns the settings of a new installation: all releases are planned and reported, none is done.
func Defaults() Settings {
	return Settings{
		Mode: DryRun, Kinds: map[object.Kind]Mode{},
		PodsPerHour: 6, StopAfter: 3, KillSwitch: "/etc/nodeagent/stop", Lock: defaultLock,
		OwnerGrace: time.Minute, ContainerGrace: 30 * time.Second, ProcessGrace: 10 * time.Second,
		VerifyWithin: 5 * time.Second, RetryAfter: time.Hour,
		Quarantine: QuarantineSettings{MaxBytes: 1 << 30, Keep: 30 * 24 * time.Hour},
	}
}

// ModeOf returns how far the action on a kind may go. The daemon releases an opt-in kind only if Kinds names it: until
// then it is planned and reported.
func (s Settings) ModeOf(kind object.Kind) Mode {
	if s.Mode != DryRun && s.Mode != On {
		return Off
	}
	if mode, ok := s.Kinds[kind]; ok {
		return mode
	}
	if kinds.Of(kind).OptIn && !s.Attended {
		return DryRun
	}
	return s.Mode
}

// forActions returns the limits of the actions.
func (s Settings) forActions() actions.Settings {
	return actions.Settings{
		AllowEmptyDir: s.AllowEmptyDir, UnmountCSI: s.UnmountCSI, ForceNetwork: s.ForceNetwork,
		QuarantineBytes: s.Quarantine.MaxBytes, ContainerGrace: s.ContainerGrace, ProcessGrace: s.ProcessGrace,
		VerifyWithin: s.VerifyWithin,
	}
}

// Validate returns the invalid keys of s.
func (s Settings) Validate() error {
	wrong := setting.Mistakes{}
	wrong.Add("mode", s.Mode.Validate())
	for kind, mode := range s.Kinds {
		_, ok := actions.All().On(kind)
		wrong.Check("kinds."+string(kind), ok, "there is no action for this kind")
		wrong.Add("kinds."+string(kind), mode.Validate())
	}
	for i, text := range s.OptOutPods {
		selector, err := labels.Parse(text)
		wrong.Add("optOutPods."+strconv.Itoa(i), err)
		wrong.Check("optOutPods."+strconv.Itoa(i), err != nil || !selector.Empty(), "selects every pod: set the mode instead")
	}
	for key, d := range map[string]time.Duration{
		"ownerGrace": s.OwnerGrace, "containerGrace": s.ContainerGrace, "processGrace": s.ProcessGrace,
		"verifyWithin": s.VerifyWithin, "retryAfter": s.RetryAfter, "quarantine.keep": s.Quarantine.Keep,
	} {
		wrong.Check(key, d >= 0, "must not be negative")
	}
	wrong.Check("podsPerHour", s.PodsPerHour >= 0, "must not be negative")
	wrong.Check("stopAfter", s.StopAfter >= 1, "must be at least 1")
	wrong.Check("lock", s.Lock != "", "must be set")
	wrong.Check("killSwitch", s.KillSwitch != "", "must be set")
	return wrong.OrNil()
}
