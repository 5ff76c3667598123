package checks

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Each reason of the table belongs to a check or rule, and appears once; each fatal one is in the table.
func TestSuggestedActions(t *testing.T) {
	known := map[string]bool{} // reasons; whether they may be fatal
	for _, c := range Checks(DefaultSettings(), Deps{}) {
		for _, f := range c.Doc.Faults {
			known[f.Reason] = known[f.Reason] || f.Severity == finding.Fatal
		}
		if c.Suggest == nil {
			t.Errorf("%s suggests nothing", c.ID)
		}
	}
	for _, r := range rules.Kernel() {
		fatal := r.Severity == finding.Fatal || r.EscalateSeverity == finding.Fatal
		known[r.Reason] = known[r.Reason] || fatal && r.ConfirmedBy == ""
	}
	seen := map[string]bool{}
	for action, reasons := range suggestions() {
		for _, reason := range strings.Fields(reasons) {
			if _, ok := known[reason]; !ok {
				t.Errorf("%s: no check gives reason %s", action, reason)
			}
			if seen[reason] {
				t.Errorf("%s is given twice", reason)
			}
			seen[reason] = true
		}
	}
	for reason, fatal := range known {
		ofRules := strings.HasPrefix(reason, "(") // the rules' own are checked one by one
		if fatal && !ofRules && SuggestedAction(reason) == "" {
			t.Errorf("%s is fatal, and nobody is asked for anything", reason)
		}
	}
}

// The part to replace is named by its label.
func TestSuggestedPart(t *testing.T) {
	for want, f := range map[string]finding.Finding{
		"nvme-disk nvme0, serial number S4EV": {Subject: finding.Subject{Kind: "nvme-disk", Name: "nvme0"},
			Facts: map[string]string{"serial": "S4EV"}},
		"disk sda, WWID naa.5000c500": {Subject: finding.Subject{Kind: "disk", Name: "sda"},
			Facts: map[string]string{"wwid": "naa.5000c500"}},
		"memory-module CPU1_DIMM_A1": {Subject: finding.Subject{Kind: "memory-module", Name: "CPU1_DIMM_A1"}},
		"disk ../../etc":             {Subject: finding.Subject{Kind: "disk", Name: "../../etc"}},
	} {
		f.Reason = "DiskFailing"
		if action, part := suggest(&host.Host{}, f); action != finding.SuggestReplaceHardware || part != want {
			t.Errorf("%s %q, want %q", action, part, want)
		}
	}
	if action, part := suggest(nil, finding.Finding{Reason: "KernelOops"}); action != finding.SuggestReboot || part != "" {
		t.Errorf("%s %q", action, part)
	}
	if action, _ := suggest(nil, finding.Finding{Reason: "DiskSlow"}); action != "" {
		t.Errorf("%s for what goes by itself", action)
	}
}

// On the machine of this test the address of a card is read.
func TestSuggestedPartOfThisMachine(t *testing.T) {
	address, err := os.ReadFile("/sys/class/net/lo/address")
	if err != nil {
		t.Fatal(err)
	}
	f := finding.Finding{Reason: "NICHardwareError", Subject: finding.Subject{Kind: "network-device", Name: "lo"}}
	want := "network-device lo, address " + strings.TrimSpace(string(address))
	if _, part := suggest(&host.Host{Files: host.Files{Root: filepath.Clean("/")}}, f); part != want {
		t.Errorf("%q, want %q", part, want)
	}
}
