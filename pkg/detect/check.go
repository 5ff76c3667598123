// Package detect finds faults of the node. Each check is one file; package checks lists them all. A check can only
// read: it is given the host, and nothing that writes.
package detect

import (
	"context"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Check detects one family of faults.
type Check struct {
	ID        string            // kebab-case, permanent
	Domain    string            // storage, cpu, memory, network, kubernetes, hardware: for users
	Summary   string            // one line: what is wrong when this check finds something
	Advice    string            // what to do next
	Doc       Doc               // for users
	Condition finding.Condition // the node condition that fatal findings of this check make true; zero for none

	Every time.Duration // interval between runs when nothing wakes the check
	// a run that takes longer is abandoned and counts as an error; DefaultDeadline unless set
	Deadline time.Duration
	Wakes    []Wake           // what makes the check run at once
	WakeGap  time.Duration    // the least time between two runs that wakes cause, where a run costs much
	Policy   finding.Policy   // when findings are believed and when they are cleared
	Severity finding.Severity // of all findings, where a user has set it; otherwise each finding has its own

	// CounterBased is set where the check learns what happened only by comparing counters: it knows nothing of the time
	// before its first run.
	CounterBased bool

	// Uses are settings of the node without which the check can tell nothing. Where one is in doubt, the check does not
	// run, and its error is the reason.
	Uses []host.Setting
	// UsesPartly are settings that decide a part of what the check looks at. Where one is in doubt, the check runs, and
	// the reason stands beside what it found.
	UsesPartly []host.Setting

	// Suggest returns what others are asked to do about a finding of this check, and the part that is to be replaced; nil:
	// nothing is asked.
	Suggest func(h *host.Host, f finding.Finding) (action finding.SuggestedAction, part string)

	RunAfter bool // runs after the others where all run once: it depends on their results

	// Run observes once. See finding.Observation for the meaning of its results; that the findings are of this check is
	// left to Observe. A check never runs twice at the same time, so that what it keeps between runs needs no lock.
	Run func(ctx context.Context, h *host.Host) ([]finding.Finding, error)
}

// DefaultDeadline is how long a run may take where the check sets no deadline.
const DefaultDeadline = 10 * time.Second

// Doc is the documentation of a check for users: "nodeagent explain", docs/checks.md.
type Doc struct {
	Reads       []string // files, sockets and calls that it reads
	Why         string   // why it matters to pods
	Faults      []Fault  // all that it finds
	FalseAlarms string   // what resembles the fault and is none, and how it is handled
}

// Fault is one reason that a check may give.
type Fault struct {
	Reason   string
	Severity finding.Severity // the highest that it can have
	When     string           // the threshold, and why it is that one
}

// Wake is a source of the host that makes a check run early. Match narrows kernel messages to those that
// contain it; other sources ignore it.
type Wake struct {
	Source WakeSource
	Match  string
	Named  bool // only changes that name this check, or that are not specified
}

// WakeSource names something of the host that notifies of changes.
type WakeSource string

// The sources.
const (
	WakeKernelLog WakeSource = "kernel-log" // a record of the kernel itself in /dev/kmsg
	WakeMounts    WakeSource = "mounts"     // the mount table changed: POLLPRI on /proc/PID/mountinfo
	WakePlugins   WakeSource = "plugins"    // kubelet's plugin registration directory changed: inotify
	WakeLinks     WakeSource = "links"      // a card, bond or team went up or down, came or went: RTNLGRP_LINK
	// a service failed, or works again; a unit could not be started: signals on the system's bus
	WakeSystemd WakeSource = "systemd"
)
