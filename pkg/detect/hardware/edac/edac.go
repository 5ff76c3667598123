// Package edac finds errors of memory modules that the memory controller counts.
package edac

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// edac reads the reports of memory controllers and caches with error correction, if the kernel has a driver for them:
//
//	/sys/devices/system/edac/mc/mc0/dimm3/dimm_label      CPU_SrcID#0_MC#0_Chan#1_DIMM#0    as the kernel's log calls it
//	                                      dimm_ce_count    17      corrected errors since the driver was loaded
//	                                      dimm_ue_count    0       errors that could not be corrected
//	                                (or rank3, of the same form)
//	/sys/devices/system/edac/mc/mc0/ce_noinfo_count        0      of which the module is not known; also ue_noinfo_count
//	/sys/devices/system/edac/CACHE/INSTANCE/BLOCK/ce_count 0       other devices than memory; also ue_count
//
// https://docs.kernel.org/driver-api/edac.html, Documentation/ABI/testing/sysfs-devices-edac. Errors that the firmware
// handles itself (firmware first) are not counted here; they may be in the kernel's log (rules cper-…) and in the event
// log of the BMC.

// Settings adjust edac.
type Settings struct {
	CorrectedPerDay uint64 `yaml:"correctedPerDay"` // corrected errors of one module in 24 hours, for a warning
}

// DefaultSettings returns the settings that are used unless the configuration says otherwise.
func DefaultSettings() Settings { return Settings{CorrectedPerDay: 100} }

const (
	edacInfo = 10 // corrected errors in 24 hours that are worth knowing
	edacKeep = 8
)

// New finds memory modules that fail. The store may be nil: then corrected errors are counted from the agent's start.
func New(s Settings, store detect.StateStore) detect.Check {
	c := &edacCheck{settings: s, saved: detect.Saved[edacHistory]{Store: store, Key: edacKey}}
	return detect.Check{
		ID: "edac", Domain: "hardware",
		Summary: "a memory module fails",
		Advice: "Drain the node and replace the module that the message names; `ras-mc-ctl --layout` and the " +
			"board's manual show where it is. After an error that could not be corrected do so at once, after many " +
			"corrected ones soon.",
		Doc: detect.Doc{
			Reads: []string{edacRoot},
			Why: "An error that cannot be corrected kills the process, or the machine, that uses the data. Modules " +
				"mostly announce it by errors that could be corrected.",
			Faults: []detect.Fault{
				{Reason: "MemoryUncorrectedError", Severity: finding.Fatal,
					When: "one error that could not be corrected since boot: field studies (Schroeder 2009, " +
						"Sridharan 2015) found the next one soon after"},
				{Reason: "MemoryReadError", Severity: finding.Warning, When: "100 corrected errors of one module in " +
					"24 hours (correctedPerDay), cleared below 75; info from 10 on. Single ones are cosmic rays"},
			},
			FalseAlarms: "Errors that a test injects.",
		},
		Condition: detect.HardwareProblem(),
		Every:     time.Minute, Deadline: 5 * time.Second,
		Wakes: []detect.Wake{checkkit.KernelWake()},
		Run:   c.run,
	}
}

// edacCheck counts corrected errors by the hour.
type edacCheck struct {
	settings Settings
	saved    detect.Saved[edacHistory]
	history  edacHistory
	changed  bool
}

func (c *edacCheck) run(_ context.Context, h *host.Host) ([]finding.Finding, error) {
	modules, doubts, err := readEDAC(h.Files)
	if err != nil {
		return nil, err
	}
	if len(modules) == 0 && len(doubts) == 0 {
		return nil, finding.NotApplicable(
			"no memory controller reports errors: there is none, or no EDAC driver for it")
	}
	now := h.Clock()
	c.load(now.Boot)
	var findings []finding.Finding
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		counts := modules[name]
		day := c.add(name, counts.corrected, now.SinceBoot)
		if f, ok := c.evaluate(name, counts, day); ok {
			findings = append(findings, f)
		}
	}
	if c.changed {
		c.saved.Save(c.history)
		c.changed = false
	}
	return findings, finding.Partial(doubts)
}

// evaluate reports the fault of one module, given its corrected errors of the last 24 hours.
func (c *edacCheck) evaluate(name string, counts edacCounts, day uint64) (finding.Finding, bool) {
	f := finding.Finding{
		Subject: finding.Subject{Kind: "memory-module", Name: name},
		Facts: map[string]string{
			"uncorrected":      fmt.Sprint(counts.uncorrected),
			"corrected":        fmt.Sprint(counts.corrected),
			"correctedLastDay": fmt.Sprint(day), "path": counts.dir,
		},
	}
	many := c.many(name, day)
	switch {
	case counts.uncorrected > 0:
		f.Severity, f.Reason = finding.Fatal, "MemoryUncorrectedError"
		f.Message = fmt.Sprintf(
			"%s returned data that could not be corrected, %d times since boot; %d errors were corrected", name,
			counts.uncorrected, counts.corrected)
	case many || day >= edacKeep:
		f.Severity, f.Reason = finding.Info, "MemoryReadError"
		f.Message = fmt.Sprintf("%s had %d corrected errors in 24 hours", name, day)
		f.BelowRaise = !many && day < edacInfo
		if many {
			f.Severity = finding.Warning
		}
	default:
		return finding.Finding{}, false
	}
	return f, true
}
