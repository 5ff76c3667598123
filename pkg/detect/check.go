// Package detect finds faults of the node. Each check is one file; package checks lists them all. A check can only
// read: it is given the host to read and nothing else.
package detect

import (
	"context"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Check looks for one family of faults.
type Check struct {
	ID        string            // kebab-case, permanent
	Domain    string            // storage, cpu, memory, network, kubernetes, hardware: how people group checks
	Summary   string            // one line: what is wrong when this check finds something
	Advice    string            // what a person should do next
	Doc       Doc               // what people read of it
	Condition finding.Condition // the node condition that fatal findings of this check make true; zero for none

	Every time.Duration // interval between looks when nothing wakes the check
	// a look that takes longer is abandoned and counts as an error; DefaultDeadline unless set
	Deadline time.Duration
	Wakes    []Wake           // what makes the check look at once
	Policy   finding.Policy   // when findings are believed and when they are cleared
	Severity finding.Severity // of all findings, where a user has set it; otherwise each finding has its own

	// Counts is set where the check learns what happened only by comparing counters: it knows nothing of the time
	// before its first look.
	CounterBased bool

	RunAfter bool // looks after the others where all look once: it asks what they saw

	// Run takes one look. See finding.Look for the meaning of its results. A check is never looked with twice at a
	// time, so that what it keeps between looks needs no lock.
	Run func(ctx context.Context, h *host.Host) ([]finding.Finding, error)
}

// DefaultDeadline is how long a look may take where the check does not say it.
const DefaultDeadline = 10 * time.Second

// Doc is what people read of a check: "nodeagent explain", docs/checks.md.
type Doc struct {
	Reads       []string // files, sockets and calls that it reads
	Why         string   // why it matters to pods
	Faults      []Fault  // all that it finds
	FalseAlarms string   // what may look like it and is none, and what is done about that
}

// Fault is one reason that a check may give.
type Fault struct {
	Reason   string
	Severity finding.Severity // the gravest that it can have
	When     string           // the threshold, and why it is that one
}

// Wake is a source of the host that makes a check look before its time. Match narrows kernel messages to those that
// contain it; other sources ignore it.
type Wake struct {
	Source WakeSource
	Match  string
	Named  bool // only changes that name this check, or may be anything
}

// WakeSource names something of the host that tells of changes by itself.
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
