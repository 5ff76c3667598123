package remediate

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect"
)

// Mode is how far an action may go.
type Mode string

// The modes.
const (
	Off    Mode = "off"     // not even planned
	DryRun Mode = "dry-run" // planned and reported, never done
	On     Mode = "on"
)

// Settings define what may be released and how. The zero value does nothing; see Defaults.
type Settings struct {
	// Off switches everything off; otherwise it applies to kinds that are not in Kinds.
	Mode  Mode                  `yaml:"mode"`
	Kinds map[inspect.Kind]Mode `yaml:"kinds"` // by kind
	// Attended says that a person asks for the release now: then Mode applies to the kinds that are opted in, too.
	Attended bool `yaml:"-"`

	PodsPerHour int `yaml:"podsPerHour"` // budget: pods that are released in any hour
	// after so many pods in a row whose release failed nothing more is released for a day; also of one pod, after so many
	// failures
	StopAfter  int      `yaml:"stopAfter"`
	OptOut     []string `yaml:"optOut"`     // namespaces whose pods are never touched
	OptOutPods []string `yaml:"optOutPods"` // selectors of the labels of pods that are never touched
	KillSwitch string   `yaml:"killSwitch"` // while this file exists nothing is done
	Lock       string   `yaml:"lock"`       // only one process on the node releases at a time
	// move the data of disk-backed emptyDirs to quarantine: it is user data
	AllowEmptyDir bool `yaml:"allowEmptyDir"`
	UnmountCSI    bool `yaml:"unmountCSI"`   // unmount CSI volumes even if their driver is alive: it owns them
	ForceNetwork  bool `yaml:"forceNetwork"` // remove a network namespace even if CNI DEL failed

	Quarantine QuarantineSettings `yaml:"quarantine"` // limits for what is moved away instead of deleted

	// for kubelet and the runtime to finish after each group of steps
	OwnerGrace     time.Duration `yaml:"ownerGrace"`
	ContainerGrace time.Duration `yaml:"containerGrace"` // between a container's stop signal and SIGKILL
	ProcessGrace   time.Duration `yaml:"processGrace"`   // between SIGTERM and SIGKILL
	VerifyWithin   time.Duration `yaml:"verifyWithin"`   // a step must show its effect within this
	// until a pod that could not be released completely is tried again
	RetryAfter time.Duration `yaml:"retryAfter"`
}

// defaultLock is not in the runtime directory of a service: systemd removes that when the service ends, with the lock
// in it. Earlier versions had their lock there (formerLock); such an agent may still be running during an update, so
// both are taken.
const (
	defaultLock = "/run/nodeagent-release.lock"
	formerLock  = "/run/nodeagent/release.lock"
)

// locks are the files that must be locked while something is released.
func (s Settings) locks() []string {
	if s.Lock == defaultLock || s.Lock == formerLock {
		return []string{defaultLock, formerLock}
	}
	return []string{s.Lock}
}

// LockNode takes the lock of releases, and with it the directory of their journal. ErrBusy while something is released.
func (s Settings) LockNode(stateDir string) (*mutate.ReleaseLock, error) {
	return mutate.Lock(append(s.locks(), stateDir)...)
}

// optedOut returns why nothing of a namespace may be released. When any is opted out, an unknown one may be that one.
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

// podOptedOut returns why nothing of an object's pod may be released, by its annotation and labels. When any labels are
// opted out, unknown ones may be those. An annotation that is not known does not count: nothing would ever be released.
func (s Settings) podOptedOut(o inspect.Object) string {
	switch {
	case o.OptOut != "":
		return o.OptOut
	case len(s.OptOutPods) > 0 && !o.LabelsKnown:
		return fmt.Sprintf("the labels of its pod are not known, and pods are opted out by theirs (%s)",
			strings.Join(s.OptOutPods, "; "))
	}
	return ""
}

// QuarantineSettings limit what is moved away instead of deleted.
type QuarantineSettings struct {
	MaxBytes uint64 `yaml:"maxBytes"` // what does not fit is not moved and stays where it is
	// then the agent removes what it moved, a day after it reported that; 0: never
	Keep time.Duration `yaml:"keep"`
}

// Defaults returns the settings of a new installation: everything is planned and reported, nothing is done.
func Defaults() Settings {
	return Settings{
		Mode: DryRun, Kinds: map[inspect.Kind]Mode{},
		PodsPerHour: 6, StopAfter: 3, KillSwitch: "/etc/nodeagent/stop", Lock: defaultLock,
		OwnerGrace: time.Minute, ContainerGrace: 30 * time.Second, ProcessGrace: 10 * time.Second,
		VerifyWithin: 5 * time.Second, RetryAfter: time.Hour,
		Quarantine: QuarantineSettings{MaxBytes: 1 << 30, Keep: 30 * 24 * time.Hour},
	}
}

// ModeOf returns how far the action on a kind may go. The daemon releases a kind that is opted in only where Kinds names
// it: until then it is planned and reported.
func (s Settings) ModeOf(kind inspect.Kind) Mode {
	if s.Mode != DryRun && s.Mode != On {
		return Off
	}
	if mode, ok := s.Kinds[kind]; ok {
		return mode
	}
	if kind.OptIn() && !s.Attended {
		return DryRun
	}
	return s.Mode
}

// Problems returns what is wrong with s, by key.
func (s Settings) Problems() map[string]string {
	problems := map[string]string{}
	if !validMode(s.Mode) {
		problems["mode"] = wrongMode(s.Mode)
	}
	for kind, mode := range s.Kinds {
		if _, ok := actionFor(kind); !ok {
			problems["kinds."+string(kind)] = "there is no action for this kind"
		} else if !validMode(mode) {
			problems["kinds."+string(kind)] = wrongMode(mode)
		}
	}
	for i, text := range s.OptOutPods {
		if selector, err := labels.Parse(text); err != nil {
			problems["optOutPods."+strconv.Itoa(i)] = err.Error()
		} else if selector.Empty() {
			problems["optOutPods."+strconv.Itoa(i)] = "selects every pod: set the mode instead"
		}
	}
	for key, d := range map[string]time.Duration{
		"ownerGrace": s.OwnerGrace, "containerGrace": s.ContainerGrace, "processGrace": s.ProcessGrace,
		"verifyWithin": s.VerifyWithin, "retryAfter": s.RetryAfter, "quarantine.keep": s.Quarantine.Keep,
	} {
		if d < 0 {
			problems[key] = "must not be negative"
		}
	}
	if s.PodsPerHour < 0 {
		problems["podsPerHour"] = "must not be negative"
	}
	if s.StopAfter < 1 {
		problems["stopAfter"] = "must be at least 1"
	}
	for key, name := range map[string]string{"lock": s.Lock, "killSwitch": s.KillSwitch} {
		if name == "" {
			problems[key] = "must be set"
		}
	}
	return problems
}

func validMode(m Mode) bool { return m == Off || m == DryRun || m == On }

func wrongMode(m Mode) string { return fmt.Sprintf("%q: must be off, dry-run or on", m) }
