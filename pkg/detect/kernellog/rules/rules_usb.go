package rules

import (
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// usbRules: drivers/usb/core/{hub,hcd}.c, drivers/usb/host/{xhci,xhci-ring}.c. A device that is unplugged only logs
// "USB disconnect".
func usbRules() []Rule {
	const device = `^(?:usb|hub) (?P<subject>[\w.:-]+): `
	return []Rule{{
		ID: "usb-controller-dead", Reason: "USBControllerDead", Domain: Hardware, Severity: finding.Warning,
		Advice: "`lsusb -t` shows what is left; restart the node, or bind the controller anew: its " +
			"address into /sys/bus/pci/drivers/xhci_hcd/unbind, then into bind.",
		Summary: "a USB controller stopped: all devices behind it are lost",
		Patterns: []string{`^(?:xhci|ehci|ohci|uhci)[_-](?:hcd|pci) (?P<subject>\S+): (?:(?:xHCI host controller not responding, assume dead|` +
			`xHCI host not responding to stop endpoint command|HC died; cleaning up)|Host halt failed, -?\d+|Host not accessible, reset failed|` +
			`WARNING: Host (?:System|Controller) Error|Abort failed to stop command ring: -?\d+)`},
		Kind: "device", Report: "usb", Expiry: UntilBoot,
	}, {
		// Many machines have one device that answers only at the second attempt.
		ID: "usb-device-failed", Reason: "USBDeviceFailed", Domain: Hardware, Severity: finding.Info,
		Advice:  "`lsusb -t` names the port: another cable, another port, another device.",
		Summary: "a USB device does not respond, or draws too much current",
		Patterns: []string{`^xhci[_-]hcd (?P<subject2>\S+): (?:Timeout while waiting for setup device command|Error while assigning device slot ID)`,
			`^hub (?P<subject3>[\d.-]+):[\d.]+: hub_ext_port_status failed \(err = -\d+\)`,
			device + `(?:device descriptor read/\w+, error -\d+|device not accepting address \d+, error -\d+|` +
				`(?:[\w-]+: )?unable to enumerate USB device|(?:[\w-]+: )?Cannot enable\. Maybe the USB cable is bad\?|(?:[\w-]+: )?over-current c(?:ondition|hange #\d+)|` +
				`hub failed to enable device, error -?\d+|can't read configurations, error -\d+|Device not responding to setup |clear tt \d+ \([0-9a-f]+\) error -\d+)`},
		Kind: "device", BootGrace: 2 * time.Minute, Escalate: Rate{10, time.Hour}, EscalateSeverity: finding.Warning,
		Expiry: time.Hour,
	}}
}

// mmcRules: drivers/mmc/core/{block,core,mmc,mmc_ops}.c, drivers/mmc/host/{sdhci,cqhci-core}.c
func mmcRules() []Rule {
	return []Rule{{
		ID: "mmc-error", Reason: "MMCError", Domain: Storage, Severity: finding.Warning,
		Advice: "`mmc extcsd read /dev/mmcblkN` has its life time and end-of-life state: replace what is " +
			"worn out, else clean its contacts.",
		Summary: "an eMMC or SD card, or its controller, fails commands: the card wears out, or its contacts are " +
			"bad",
		Literals: []string{"cqhci: timeout for tag ", "imeout waiting for hardware ", ": Card stuck ",
			": recovery failed!",
			": ADMA error: 0x", ": cache flush error ", " whilst initialising MMC card", "removed during ",
			"mmcblk", "reset card, got error ", "cqhci: Failed to halt",
			"cqhci: CQE stuck on", "(card was removed?)", " error, status 0x", "mmc_erase: ", "Failed to enable CQE",
			" interrupt 0x", " never completed.", "never released inhi", "clock never stabili"},
		Patterns: []string{
			`^(?P<subject>mmc(?:blk)?\d+\w*): (?:cqhci: (?:timeout for tag \d+|Failed to halt|CQE stuck on)|[Tt]imeout waiting for hardware (?:cmd )?interrupt\.|` +
				`Card stuck (?:being busy|in wrong state|in programming state)!|recovery failed!|ADMA error: 0x[0-9a-f]+|cache flush error -\d+|error -\d+ whilst initialising MMC card|` +
				`(?:Card|Controller) removed during +transfer!|tried to [HS]W reset card, got error -\d+|error -?\d+ during resume \(card was removed\?\)|Failed to enable CQE, error -\d+|` +
				// drivers/mmc/host/sdhci.c
				`Got (?:data|command) interrupt 0x[0-9a-f]+ even though|Unexpected interrupt 0x[0-9a-f]+\.|Reset 0x[0-9a-f]+ never completed\.|` +
				`Controller never released inhibit bit|Internal clock never stabilised\.)`,
			`^(?P<subject2>mmcblk\d+\w*): (?:error -\d+ (?:requesting status|sending (?:status|stop) command|transferring data)|retrying using single block (?:read|write)$)`, // until 4.15
			`^mmc_erase: (?:group (?:start|end)|erase) error -?\d+, status 0x[0-9a-f]+`,
		},
		Kind: "device", Report: "mmc", Expiry: time.Hour,
	}}
}
