package storage

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// nvme-health reads, of each local controller,
//
//	/sys/class/nvme/nvme0/state        live; new, resetting, connecting, deleting, deleting (no IO), dead
//	/sys/class/nvme/nvme0/transport    pcie; those of other transports are on another machine, see multipath
//	/sys/class/nvme/nvme0/{serial,model}
//
// and every hour, in a child process, its SMART / health information (log page 02h, 512 bytes, NVM Express base
// specification 5.14.1.2, little endian):
//
//	 0  critical warning: bit 0 spare below threshold, 1 too hot or cold, 2 reliability degraded, 3 read-only,
//	    4 memory backup failed, 5 persistent memory region unreliable
//	 1  temperature in kelvin (2 bytes)    3 spare left in %    4 threshold of it    5 share of its life used
//	160 errors of medium and data (16 bytes)
//
// Documentation/ABI/testing/sysfs-nvme, https://nvmexpress.org/specifications/

const (
	reasonNVMeDead    = "NVMeDead"
	reasonNVMeStuck   = "NVMeNotLive"
	reasonNVMeRO      = "NVMeReadOnly"
	reasonNVMeFailing = "NVMeDegraded"
	reasonNVMeSpare   = "NVMeSpareLow"
	reasonNVMeHot     = "NVMeTemperature"
	reasonNVMeMedia   = "NVMeMediaErrors"
	reasonNVMeWorn    = "NVMeWornOut"
)

// NVMeHealth finds NVMe disks that are dead, damaged or about to be. The store may be nil: then errors are counted from
// the start of the agent.
func NVMeHealth(store detect.StateStore) detect.Check {
	n := &nvmeState{errors: newErrorCounters(store, "nvme-health")}
	return detect.Check{
		ID: "nvme-health", Domain: "storage",
		Summary: "an NVMe disk is dead, reports damage, or does not come out of a reset",
		Advice: "See `nvme smart-log /dev/DISK`, `nvme error-log /dev/DISK` and `dmesg -T | grep nvme`. Read-only, " +
			"degraded or out of spare: drain the node, save the data, replace the disk. Too hot: check fans and air " +
			"flow. Dead: a power cycle (not a reboot) brings some back; in a cloud, stop and start the machine to " +
			"get another disk.",
		Doc: detect.Doc{
			Reads: []string{"/sys/class/nvme/*/{state,transport,serial,model}",
				"log page 02h of /dev/nvme* (NVME_IOCTL_ADMIN_CMD) in a child process, every hour"},
			Why: "Disks report damage days before they fail; afterwards the pods' local data are lost, and so is the " +
				"node if it was its disk.",
			Faults: []detect.Fault{
				{Reason: reasonNVMeDead, Severity: finding.Fatal, When: "the kernel gave up the controller: warning; " +
					"fatal where the filesystem of /, kubelet or the runtime is on it"},
				{Reason: reasonNVMeStuck, Severity: finding.Warning,
					When: "it is not live for 30 s: a reset takes seconds"},
				{Reason: reasonNVMeRO, Severity: finding.Fatal, When: "critical warning bit 3, takes no more writes: " +
					"warning; fatal as above"},
				{Reason: reasonNVMeFailing, Severity: finding.Warning,
					When: "critical warning bit 2, 4 or 5: reliability degraded by errors, or its backup of memory " +
						"failed"},
				{Reason: reasonNVMeSpare, Severity: finding.Warning, When: "critical warning bit 0, or fewer spare " +
					"blocks left than its own threshold (0: none)"},
				{Reason: reasonNVMeHot, Severity: finding.Warning, When: "critical warning bit 1: above or below its " +
					"own limits of temperature"},
				{Reason: reasonNVMeMedia, Severity: finding.Warning,
					When: "its count of medium and data errors grew within a day"},
				{Reason: reasonNVMeWorn, Severity: finding.Info,
					When: "all of its life is used, as its vendor estimates it"},
			},
			FalseAlarms: "None known. Old errors that no longer grow, resets that last seconds, and disks without a " +
				"health log (virtual ones) are not reported. Amazon EBS is not queried.",
		},
		Condition: detect.StorageProblem(),
		Every:     time.Minute, Deadline: 30 * time.Second,
		Wakes: []detect.Wake{checkkit.LogWake("nvme nvme"), checkkit.LogWake("critical medium error, dev nvme")},
		Run:   n.run,
	}
}

// nvmeState is kept between runs.
type nvmeState struct {
	states  heldStates
	answers diskAnswers[nvmeSMART]
	errors  *errorCounters
}

// nvmeDisk is one local controller.
type nvmeDisk struct{ name, state, serial, model string }

func (n *nvmeState) run(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	disks, results, err := nvmeDisks(h.Files)
	if err != nil {
		return nil, err
	}
	n.states.begin()
	n.answers.begin()
	for _, d := range disks {
		f := finding.Finding{Subject: deviceSubject(d.name), Severity: finding.Warning}
		if d.state != "live" {
			held := n.states.held(d.name, d.state, h.Clock().SinceBoot)
			if d.state != "dead" && held < passingState {
				continue
			}
			f.Reason, f.Message = reasonNVMeStuck, "is "+d.state
			if d.state == "dead" {
				f.Reason, f.Message = reasonNVMeDead, "was given up by the kernel (state dead)"
			}
			results.Add(d.finding(ctx, h, f), true)
			continue
		}
		answer, grown := n.query(ctx, h, d)
		if !results.Doubt(f.Subject, answer.err) && answer.supported && answer.health.evaluate(&f, grown) {
			results.Add(d.finding(ctx, h, f), true)
		}
	}
	return results.Done()
}

// nvmeDisks lists the local controllers.
func nvmeDisks(files host.Files) (disks []nvmeDisk, results checkkit.Results, err error) {
	const class = "/sys/class/nvme"
	names, err := checkkit.ListSorted(files, class)
	if err != nil {
		return nil, results, fmt.Errorf("list %s: %w", class, err)
	}
	if len(names) == 0 {
		return nil, results, finding.NotApplicable("there is no NVMe disk")
	}
	for _, name := range names[:min(len(names), checkkit.MaxDisks)] {
		dir := class + "/" + name
		transport, err := checkkit.OptionalDeviceText(files, dir+"/transport")
		if err == nil && transport != "pcie" {
			continue // on another machine, or removed
		}
		d := nvmeDisk{name: name}
		if err == nil {
			d.state, err = files.Text(dir + "/state")
		}
		if results.Doubt(deviceSubject(name), err) {
			continue
		}
		d.state = checkkit.Sanitize(d.state, 32)
		d.serial, _ = checkkit.OptionalDeviceText(files, dir+"/serial") // only distinguishes disks
		d.model, _ = checkkit.OptionalDeviceText(files, dir+"/model")
		disks = append(disks, d)
	}
	if len(disks) == 0 && results.Empty() {
		return nil, results, finding.NotApplicable("there is no local NVMe disk")
	}
	return disks, results, nil
}

// query returns the health that the disk reports, or reported within the hour, and by how much its errors grew.
func (n *nvmeState) query(ctx context.Context, h *host.Host, d nvmeDisk) (diskAnswer[nvmeSMART], uint64) {
	if d.model == ebsModel {
		return diskAnswer[nvmeSMART]{}, 0
	}
	answer := n.answers.query(ctx, h, probe.ProbeRequest{Op: probe.ProbeNVMeHealth, Path: "/dev/" + d.name}, d.serial,
		parseNVMeSMART)
	if answer.err != nil || !answer.supported {
		return answer, 0
	}
	return answer, n.errors.add(d.serial, answer.health.mediaErrors, h.Clock())
}

// finding adds the identity of the disk, and the impact.
func (d nvmeDisk) finding(ctx context.Context, h *host.Host, f finding.Finding) finding.Finding {
	if f.Facts == nil {
		f.Facts = make(map[string]string)
	}
	f.Facts["model"], f.Facts["serial"], f.Facts["state"] = d.model, d.serial, d.state
	f.Message = fmt.Sprintf("NVMe disk %s (%s, serial number %s) %s", d.name, d.model, d.serial, f.Message)
	if f.Severity != finding.Info {
		mayBeFatal := f.Reason == reasonNVMeDead || f.Reason == reasonNVMeRO
		addImpact(ctx, h, &f, true, mayBeFatal, d.namespaces(h.Files)...)
	}
	return f
}

// namespaces lists the disks of a controller: nvme0n1; if the kernel has several paths to it, nvme0c1n1 is a path and
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

// nvmeSMART has the evaluated fields of the health log.
type nvmeSMART struct {
	warning                       byte
	kelvin                        uint16
	spare, spareThreshold, usedUp uint8  // percent
	mediaErrors                   uint64 // since the disk was produced
}

// Bits of the critical warning.
const (
	warnSpare       = 1 << 0
	warnTemperature = 1 << 1
	warnReliability = 1 << 2
	warnReadOnly    = 1 << 3
	warnBackup      = 1 << 4
	warnMemory      = 1 << 5
)

// parseNVMeSMART parses log page 02h. A disk with a warning is unwell.
func parseNVMeSMART(page []byte) (log nvmeSMART, unwell bool, err error) {
	const size, mediaErrors = 512, 160
	if len(page) != size {
		return nvmeSMART{}, false, fmt.Errorf("%d bytes, want %d", len(page), size)
	}
	log = nvmeSMART{
		warning: page[0], kelvin: binary.LittleEndian.Uint16(page[1:]), spare: page[3], spareThreshold: page[4],
		usedUp:      page[5],
		mediaErrors: binary.LittleEndian.Uint64(page[mediaErrors:]),
	}
	if binary.LittleEndian.Uint64(page[mediaErrors+8:]) != 0 {
		log.mediaErrors = math.MaxUint64
	}
	if log.spare > 100 || log.spareThreshold > 100 {
		return nvmeSMART{}, false, fmt.Errorf("spare of %d %%, threshold of %d %%", log.spare, log.spareThreshold)
	}
	return log, log.warning != 0 || log.spareShort(), nil
}

func (l nvmeSMART) spareShort() bool {
	return l.warning&warnSpare != 0 || l.spareThreshold > 0 && l.spare < l.spareThreshold
}

// evaluate puts the most severe fault into f.
func (l nvmeSMART) evaluate(f *finding.Finding, grown uint64) bool {
	switch {
	case l.warning&warnReadOnly != 0:
		f.Reason, f.Message = reasonNVMeRO, "takes no more writes"
	case l.warning&warnReliability != 0:
		f.Reason, f.Message = reasonNVMeFailing, "reports that errors have made it unreliable"
	case l.warning&(warnBackup|warnMemory) != 0:
		f.Reason, f.Message = reasonNVMeFailing, "reports that its memory is no longer safe when power fails"
	case l.spareShort():
		f.Reason, f.Message = reasonNVMeSpare, fmt.Sprintf("has %d %% of its spare blocks left, its threshold is %d %%",
			l.spare, l.spareThreshold)
	case grown > 0:
		f.Reason, f.Message = reasonNVMeMedia, fmt.Sprintf("had %d more errors of its medium within a day, %d in all",
			grown, l.mediaErrors)
	case l.warning&warnTemperature != 0:
		f.Reason, f.Message = reasonNVMeHot, fmt.Sprintf("is at %d °C, which is beyond its own limits",
			int(l.kelvin)-273)
	case l.usedUp >= 100:
		f.Severity, f.Reason, f.Message = finding.Info, reasonNVMeWorn,
			fmt.Sprintf("has used %d %% of its life, as its vendor estimates it", l.usedUp)
	default:
		return false
	}
	f.Facts = map[string]string{
		"criticalWarning": fmt.Sprintf("%#02x", l.warning), "spare": fmt.Sprint(l.spare),
		"spareThreshold": fmt.Sprint(l.spareThreshold),
		"percentageUsed": fmt.Sprint(l.usedUp), "mediaErrors": fmt.Sprint(l.mediaErrors),
		"celsius": fmt.Sprint(int(l.kelvin) - 273),
	}
	return true
}
