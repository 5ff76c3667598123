// Package kernellog recognises faults in the kernel's log: matcher, tally and the check kernel-log. The rules are data,
// in package rules; package replay reads saved logs.
package kernellog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/kmsg"
	"github.com/nodeagent/nodeagent/internal/setting"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// The kernel's log, /dev/kmsg: one record per read, "priority,sequence,µs since boot,flags;text". A program may write
// to it, but not with the kernel's facility (priority >> 3 is 0), so only the kernel's own lines count.
// https://www.kernel.org/doc/Documentation/ABI/testing/dev-kmsg

// Settings adjust kernel-log.
type Settings struct {
	// Programs makes lines that programs write into the kernel's log count as the kernel's. For tests: any program that
	// may write there could then take the node out of service.
	Programs bool `yaml:"programs"`
	// Rules adjusts rules of the table, by ID.
	Rules map[string]RuleSettings `yaml:"rules,omitempty"`
	// Custom are the rules of the user, from elsewhere in the configuration.
	Custom []rules.Rule `yaml:"-"`
}

// RuleSettings adjust one rule of the table.
type RuleSettings struct {
	Off      bool             `yaml:"off,omitempty"`
	Severity finding.Severity `yaml:"severity,omitempty"` // of all its findings; the default is the rule's own
	// how long the record alone keeps a finding; the default is the rule's own
	Expiry time.Duration `yaml:"expiry,omitempty"`
}

// DefaultSettings returns the default settings.
func DefaultSettings() Settings { return Settings{} }

// Validate returns the invalid settings.
func (s Settings) Validate() error {
	wrong := setting.Mistakes{}
	table := rules.Kernel()
	for id := range s.Rules {
		known := slices.ContainsFunc(table, func(r rules.Rule) bool { return r.ID == id })
		wrong.Check("rules."+id, known, "there is no such rule; see nodeagent explain kernel-log")
	}
	return wrong.OrNil()
}

// Table returns the rules of the kernel's log with the user's settings applied.
func (s Settings) Table() []rules.Rule {
	table := rules.Kernel()
	for i := range table {
		own := s.Rules[table[i].ID]
		if own.Severity != "" {
			table[i].Severity, table[i].Escalate = own.Severity, rules.Rate{}
		}
		if own.Expiry > 0 {
			table[i].Expiry = own.Expiry
		}
	}
	table = slices.DeleteFunc(table, func(r rules.Rule) bool { return s.Rules[r.ID].Off })
	return append(table, s.Custom...)
}

const ID = "kernel-log"

// NewKernelLog returns an empty log for the rules of the settings.
func NewKernelLog(s Settings) (*Log, error) {
	matcher, err := NewMatcher(s.Table())
	if err != nil {
		return nil, err
	}
	log := NewLog(matcher)
	log.programs = s.Programs
	return log, nil
}

// New reports faults that the kernel of this boot logged about itself, its hardware and its filesystems. If a check can
// read the state, it decides: the record only wakes it. A followed log is saved across restarts; without one, each run
// reads the existing records.
func New(s Settings, follow *Log, sources *detect.StateSources, memory detect.StateStore) detect.Check {
	return detect.Check{
		ID: ID, Domain: "kernel",
		Summary: "the kernel reported a fault in its log",
		Advice: "Read the surrounding lines: `dmesg --time-format iso`, or `journalctl -k`; `nodeagent replay` " +
			"explains a saved log.",
		Doc: detect.Doc{
			Reads: []string{
				"/dev/kmsg: records of the kernel itself (facility 0), from the oldest that exists",
				"of what a finding is about: the inode of its directory in /sys/class, /sys/bus or the cgroup " +
					"filesystem, diskseq, /proc/PID/stat",
				"/sys/block/loopN and the mount table: whether something uses a loop device that had errors",
			},
			Why: "The kernel reports many faults only once, in its log: an oops, a lockup, a machine check, a disk " +
				"reset. Where their state can be read, another check does that, raises and clears, and the line " +
				"only makes it run at once.",
			Faults: []detect.Fault{
				{Reason: "(a rule's)", Severity: finding.Fatal,
					When: "see the rules of the kernel's log; each has its own threshold, severity and expiry"},
				{Reason: "KernelRecordsLost", Severity: finding.Warning,
					When: "the kernel dropped records before they could be read, in the last 10 minutes: something " +
						"may have been missed"},
			},
			FalseAlarms: "A rule without state behind it keeps its finding until the record expires, although " +
				"the fault may end sooner. A finding about a device, a network interface, a cgroup or a process that was " +
				"seen after its fault is cleared within a minute when that is gone, or another one has its name; one that " +
				"went with its fault was lost by it, and counts. What programs write into the kernel's log does not count.",
		},
		Condition: detect.KernelProblem(),
		Every:     time.Minute, Deadline: 5 * time.Second, RunAfter: true,
		Wakes: []detect.Wake{checkkit.KernelWake()},
		Run: func(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
			log := follow
			var err error
			if log == nil {
				log, err = readKernelLog(ctx, h, s)
			} else {
				err = log.Await(ctx)
			}
			if err != nil {
				return nil, err
			}
			if follow != nil {
				log.ForgetGone(h)
			}
			now := h.Clock()
			findings := log.Findings(now.SinceBoot, func(r *rules.Rule, at time.Duration) bool {
				return sources.CanConfirm(r.ConfirmedBy, at, now.SinceBoot)
			})
			findings = slices.DeleteFunc(findings, func(f finding.Finding) bool {
				return f.Facts["rule"] == rules.LoopIOError && f.Subject.Kind == "device" &&
					loopUnused(h, f.Subject.Name)
			})
			for i := range findings {
				findings[i].Check = ID
				if findings[i].Subject.Kind == rules.NodeKind {
					findings[i].Subject.Name = checkkit.NodeName(h)
				}
			}
			if follow != nil && log.Moved() {
				SaveKernelLog(follow, sources, memory, now, false)
			}
			return findings, nil
		},
	}
}

// readKernelLog reads the existing records.
func readKernelLog(ctx context.Context, h *host.Host, s Settings) (*Log, error) {
	if h.KernelLog == nil {
		return nil, fmt.Errorf("the kernel's log: %w", hosterr.ErrNotConfigured)
	}
	log, err := NewKernelLog(s)
	if err != nil {
		return nil, err
	}
	return log, kernelLogError(h.KernelLog(ctx, func(r kmsg.KernelRecord) { log.Observe(r) }))
}

// kernelLogError distinguishes a host without its own kernel log from one whose log cannot be read.
func kernelLogError(err error) error {
	if errors.Is(err, kmsg.ErrNoKernelLog) {
		return finding.NotApplicable("this host, a container, has no kernel log: %v", err)
	}
	return err
}

// SaveKernelLog saves the state for the next run of the agent in this boot. last means that the agent exits cleanly.
func SaveKernelLog(follow *Log, sources *detect.StateSources, memory detect.StateStore,
	at finding.Timestamp, last bool) {
	if memory == nil {
		return
	}
	detect.Saved[saved]{Store: memory, Key: ID}.Save(follow.snapshot(at.Boot, last))
	sources.Save(memory, at)
}

// KernelWatch follows the kernel's log from the oldest record: see host.WatchKernelLog.
type KernelWatch func(ctx context.Context, log *slog.Logger, each func(kmsg.KernelRecord), caughtUp func()) error

// KernelLogSource feeds follow with the records of watch, and wakes checks: those that subscribed to a text, the one
// that confirms the matching rule, and kernel-log itself. lost receives the number of lost records; it may be nil.
// Existing records do not wake checks: every check runs at start.
func KernelLogSource(follow *Log, logger *slog.Logger, watch KernelWatch,
	lost func(records uint64)) detect.Source {
	return detect.Source{Name: detect.WakeKernelLog, Run: func(ctx context.Context, wake func(detect.Change)) error {
		live := false
		err := watch(ctx, logger, func(r kmsg.KernelRecord) {
			if r.Lost > 0 && live {
				if lost != nil {
					lost(r.Lost)
				}
				wake(detect.Change{}) // their content is unknown
			}
			rule, ok := follow.Observe(r)
			if !live || !r.FromKernel() && !follow.programs {
				return
			}
			change := detect.Change{Text: r.Text}
			if ok {
				change.Checks = []string{ID, rule.ConfirmedBy}
			}
			wake(change)
		}, func() {
			live = true
			follow.setReadable(nil)
			wake(detect.Change{})
		})
		follow.setReadable(kernelLogError(err))
		if errors.Is(err, kmsg.ErrNoKernelLog) {
			<-ctx.Done() // there are no lost records
			return nil
		}
		return err
	}}
}

// RestoreKernelLog takes the state that an earlier run of the agent in this boot has saved.
func RestoreKernelLog(follow *Log, sources *detect.StateSources, memory detect.StateStore, boot string) {
	sources.Restore(memory, boot)
	stored := detect.Saved[saved]{Store: memory, Key: ID}
	if s, ok := stored.Load(func(s saved) bool { return s.Boot == boot }); ok {
		follow.restore(s)
	}
}
