// Package detect finds faults of the node. Each check is one file; package checks lists them all. A check can only
// read: it gets the host, and no means to write.
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
	Summary   string            // one line: the fault that this check finds
	Advice    string            // the next step for the user
	Doc       Doc               // for users
	Condition finding.Condition // the node condition that fatal findings of this check set to True; zero for none

	Every time.Duration // interval between runs when nothing wakes the check
	// a run that takes longer is abandoned and counts as an error; DefaultDeadline unless set
	Deadline time.Duration
	Wakes    []Wake           // changes that make the check run at once
	WakeGap  time.Duration    // the shortest time between two runs caused by wakes, if a run is expensive
	Policy   finding.Policy   // when findings are believed and cleared
	Severity finding.Severity // of all findings, if a user has set it; otherwise each finding has its own

	// CounterBased is set if the check detects events only by comparing counters: it cannot see the time before its
	// first run.
	CounterBased bool

	// Uses are settings of the node that the check requires. If one is in doubt, the check does not run, and its error
	// is the reason.
	Uses []host.Setting
	// UsesPartly are settings that affect only a part of the check. If one is in doubt, the check runs, and the reason
	// is added to its findings.
	UsesPartly []host.Setting

	// Suggest returns the action that others should take on a finding of this check, and the component to replace; nil:
	// no suggestion.
	Suggest func(h *host.Host, f finding.Finding) (action finding.SuggestedAction, part string)

	RunAfter bool // runs after the others when each runs once: it depends on their results

	// Run observes once. See finding.Observation for the meaning of its results. Observe adds the ID of the check to
	// the findings. A check never runs twice at the same time, so state that it keeps between runs needs no lock.
	Run func(ctx context.Context, h *host.Host) ([]finding.Finding, error)
}

// DefaultDeadline is the time limit of a run if the check sets no deadline.
const DefaultDeadline = 10 * time.Second

// Doc is the documentation of a check for users: "nodeagent explain", docs/checks.md.
type Doc struct {
	Reads       []string // files, sockets and calls that it reads
	Why         string   // why it matters to pods
	Faults      []Fault  // all its possible findings
	FalseAlarms string   // harmless states that resemble the fault, and how the check handles them
}

// Fault is one reason that a check may give.
type Fault struct {
	Reason   string
	Severity finding.Severity // the highest possible
	When     string           // the threshold, and its reason
}

// Wake is a source of the host that makes a check run early. Match narrows kernel messages to those that
// contain it; other sources ignore it.
type Wake struct {
	Source WakeSource
	Match  string
	Named  bool // only changes that name this check, or that are not specified
}

// WakeSource names a part of the host that notifies of changes.
type WakeSource string

// The sources.
const (
	WakeKernelLog WakeSource = "kernel-log" // a record of the kernel itself in /dev/kmsg
	WakeMounts    WakeSource = "mounts"     // the mount table changed: POLLPRI on /proc/PID/mountinfo
	WakePlugins   WakeSource = "plugins"    // kubelet's plugin registration directory changed: inotify
	WakeLinks     WakeSource = "links"      // a card, bond or team went up or down, came or went: RTNLGRP_LINK
	// a service failed or recovered, or a unit could not be started: signals on the system bus
	WakeSystemd WakeSource = "systemd"
)
