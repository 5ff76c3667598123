package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// nvme-health reads, of each local controller,
//
//	/sys/class/nvme/nvme0/state        live; new, resetting, connecting, deleting, deleting (no IO), dead
//	/sys/class/nvme/nvme0/transport    pcie; those of other transports are another machine's, see multipath
//	/sys/class/nvme/nvme0/{serial,model}
//
// and every hour, in a child process, its SMART / health information (log page 02h, 512 bytes, NVM Express base
// specification 5.14.1.2, little endian):
//
//	 0  critical warning: bit 0 spare below threshold, 1 too hot or cold, 2 reliability degraded, 3 read-only,
//	    4 memory backup failed, 5 persistent memory region unreliable
//	 1  temperature in kelvin (2 bytes)    3 spare left in %    4 threshold of it    5 share of its life used in %, up to 255
//	160 errors of medium and data (16 bytes)
//
// /Documentation/ABI/testing/sysfs-nvme, https://nvmexpress.org/specifications/
//
// The bits are the disk's own judgement, so that there are no thresholds of ours. The number of errors is old news on
// many disks: that it grew within a day is what counts.
//
// Known false alarms, and what is done: some virtual disks give a page of zeros, or none at all (Amazon EBS is not
// asked): that is no fault. A threshold of 0 is none. A controller is "resetting" for seconds after a timeout: it
// counts after 30 s. A share of 100 % and more of its life is the maker's estimate, and the disk goes on: worth
// knowing only.

const (
	nvmeHealthID = "nvme-health"

	reasonNVMeDead    = "NVMeDead"
	reasonNVMeStuck   = "NVMeNotLive"
	reasonNVMeRO      = "NVMeReadOnly"
	reasonNVMeFailing = "NVMeDegraded"
	reasonNVMeSpare   = "NVMeSpareLow"
	reasonNVMeHot     = "NVMeTemperature"
	reasonNVMeMedia   = "NVMeMediaErrors"
	reasonNVMeWorn    = "NVMeWornOut"
)

// NVMeHealth finds NVMe disks that are dead, damaged or about to be. Memory may be nil: then errors are counted from
// the start of the agent.
func NVMeHealth(memory detect.StateStore) detect.Check {
	n := &nvmeState{errors: newErrorCounters(memory, nvmeHealthID)}
	return detect.Check{
		ID:      nvmeHealthID,
		Domain:  "storage",
		Summary: "an NVMe disk is dead, says that it is damaged, or does not come out of a reset",
		Advice: "See `nvme smart-log /dev/DISK`, `nvme error-log /dev/DISK` and `dmesg -T | grep nvme`. Read-only, " +
			"degraded or out of spare: drain the node, save the data, replace the disk. Too hot: look at fans and " +
			"air flow. Dead: a power cycle (not a reboot) brings some back; a cloud's disk is replaced by stopping " +
			"and starting the machine.",
		Doc: detect.Doc{
			Reads: []string{"/sys/class/nvme/*/{state,transport,serial,model}",
				"log page 02h of /dev/nvme* (NVME_IOCTL_ADMIN_CMD) in a child process, every hour"},
			Why: "disks tell days before they fail; afterwards the pods' local data are gone, and so is the node " +
				"when it was its disk",
			Faults: []detect.Fault{
				{Reason: reasonNVMeDead, Severity: finding.Fatal, When: "the kernel gave up the controller: warning; " +
					"fatal where the filesystem of /, kubelet or the runtime is on it"},
				{Reason: reasonNVMeStuck, Severity: finding.Warning,
					When: "it is not live for 30 s: a reset takes seconds"},
				{Reason: reasonNVMeRO, Severity: finding.Fatal, When: "critical warning bit 3, takes no more writes: " +
					"warning; fatal as above"},
				{Reason: reasonNVMeFailing, Severity: finding.Warning,
					When: "critical warning bit 2, 4 or 5: reliability degraded by errors, or its backup of memory failed"},
				{Reason: reasonNVMeSpare, Severity: finding.Warning, When: "critical warning bit 0, or less spare " +
					"blocks left than its own threshold"},
				{Reason: reasonNVMeHot, Severity: finding.Warning, When: "critical warning bit 1: above or below its " +
					"own limits of temperature"},
				{Reason: reasonNVMeMedia, Severity: finding.Warning,
					When: "its count of medium and data errors grew within a day"},
				{Reason: reasonNVMeWorn, Severity: finding.Info,
					When: "all of its life is used, as its maker estimates it"},
			},
			FalseAlarms: "Old errors that no longer grow, resets that last seconds, and disks that know no health " +
				"log (virtual ones) are no faults. What a disk says of its life is an estimate.",
		},
		Condition: detect.StorageProblem(),
		Every:     time.Minute,
		Deadline:  30 * time.Second,
		Wakes: []detect.Wake{{Source: detect.WakeKernelLog, Match: "nvme nvme"},
			{Source: detect.WakeKernelLog, Match: "critical medium error, dev nvme"}},
		Run: n.look,
	}
}

// nvmeState is what one look leaves for the next.
type nvmeState struct {
	states stateMemory
	asks   diskAsks[nvmeSMART]
	errors *errorCounters
}

// nvmeDisk is one local controller.
type nvmeDisk struct{ name, state, serial, model string }

func (n *nvmeState) look(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	disks, doubts, err := nvmeDisks(h.Files)
	if err != nil {
		return nil, err
	}
	n.states.begin()
	n.asks.begin()
	var findings []finding.Finding
	for _, d := range disks {
		f := finding.Finding{Check: nvmeHealthID, Subject: deviceSubject(d.name), Severity: finding.Warning}
		if d.state != "live" {
			held := n.states.held(d.name, d.state, h.Clock().SinceBoot)
			if d.state != "dead" && held < passingState {
				continue
			}
			f.Reason, f.Message = reasonNVMeStuck, "is "+d.state
			if d.state == "dead" {
				f.Reason, f.Message = reasonNVMeDead, "was given up by the kernel (state dead)"
			}
			findings = append(findings, d.finding(ctx, h, f))
			continue
		}
		answer, grown := n.ask(ctx, h, d)
		switch {
		case answer.err != nil:
			doubts[f.Subject] = answer.err
		case answer.knows && answer.said.judge(&f, grown):
			findings = append(findings, d.finding(ctx, h, f))
		}
	}
	return findings, finding.Partial(doubts)
}

// nvmeDisks lists the local controllers.
func nvmeDisks(files host.Files) ([]nvmeDisk, map[finding.Subject]error, error) {
	const class = "/sys/class/nvme"
	names, err := files.List(class)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(names) == 0 {
		return nil, nil, finding.NotApplicable("there is no NVMe disk")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("list %s: %w", class, err)
	}
	slices.Sort(names)
	var disks []nvmeDisk
	doubts := make(map[finding.Subject]error)
	for _, name := range names[:min(len(names), checkkit.MaxDisksLooked)] {
		dir := class + "/" + name
		transport, err := checkkit.OptionalDeviceText(files, dir+"/transport")
		if err == nil && transport != "pcie" {
			continue // of another machine, or gone
		}
		d := nvmeDisk{name: name}
		if err == nil {
			d.state, err = files.Text(dir + "/state")
		}
		if err != nil {
			doubts[deviceSubject(name)] = err
			continue
		}
		d.state = checkkit.Sanitize(d.state, 32)
		d.serial, _ = checkkit.OptionalDeviceText(files, dir+"/serial") // only tells one disk from the next
		d.model, _ = checkkit.OptionalDeviceText(files, dir+"/model")
		disks = append(disks, d)
	}
	if len(disks) == 0 && len(doubts) == 0 {
		return nil, nil, finding.NotApplicable("there is no local NVMe disk")
	}
	return disks, doubts, nil
}

// ask returns what the disk says of its health, or said within the hour, and by how much its errors grew.
func (n *nvmeState) ask(ctx context.Context, h *host.Host, d nvmeDisk) (diskAnswer[nvmeSMART], uint64) {
	if d.model == ebsModel {
		return diskAnswer[nvmeSMART]{}, 0
	}
	answer := n.asks.ask(ctx, h, probe.ProbeRequest{Op: probe.ProbeNVMeHealth, Path: "/dev/" + d.name}, d.serial,
		parseNVMeSMART)
	if answer.err != nil || !answer.knows {
		return answer, 0
	}
	return answer, n.errors.note(d.serial, answer.said.mediaErrors, h.Clock())
}

// finding adds what people need to know of the disk.
func (d nvmeDisk) finding(ctx context.Context, h *host.Host, f finding.Finding) finding.Finding {
	if f.Facts == nil {
		f.Facts = make(map[string]string)
	}
	f.Facts["model"], f.Facts["serial"], f.Facts["state"] = d.model, d.serial, d.state
	f.Message = fmt.Sprintf("NVMe disk %s (%s, serial number %s) %s", d.name, d.model, d.serial, f.Message)
	mounts, err := mount.Table(h)
	if err != nil || f.Severity == finding.Info {
		return f // what is known is enough
	}
	var needed, pods []string
	for _, disk := range d.namespaces(h.Files) {
		needed = append(needed, vitalWithoutSpare(h, mounts, disk)...)
		pods = append(pods, podsOnDisk(ctx, h, mounts, disk)...)
	}
	if len(needed) > 0 && (f.Reason == reasonNVMeDead || f.Reason == reasonNVMeRO) {
		f.Severity = finding.Fatal
	}
	checkkit.AddNeededFor(&f, needed)
	checkkit.AddAffectedPods(&f, pods)
	return f
}

// namespaces lists the disks of a controller: nvme0n1; where the kernel has several ways to it, nvme0c1n1 is a way and
// nvme0n1 the disk.
func (d nvmeDisk) namespaces(files host.Files) []string {
	entries, err := files.List("/sys/class/nvme/" + d.name)
	if err != nil {
		return nil
	}
	var disks []string
	for _, entry := range entries {
		number, ok := strings.CutPrefix(entry, "nvme")
		before, namespace, isDisk := strings.Cut(number, "n")
		instance, _, _ := strings.Cut(before, "c")
		if ok && isDisk && instance != "" && strings.Trim(instance+namespace, "0123456789") == "" {
			disks = append(disks, "nvme"+instance+"n"+namespace)
		}
	}
	slices.Sort(disks)
	return slices.Compact(disks)
}
