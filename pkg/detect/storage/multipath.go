package storage

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// multipath reads, of multipathd's devices,
//
//	/sys/block/dm-3/dm/uuid         mpath-3600508b400105e210000900000490000
//	/sys/block/dm-3/dm/name         mpatha
//	/sys/block/dm-3/slaves/         sdb sdc: its paths
//	/sys/block/sdb/device/state     running; offline, transport-offline, blocked …: see scsi-device-state
//	/dev/mapper/control             2 0 0 0 1 1 E 0 2 0 8:16 F 1 8:32 A 0: the status, see parseMultipath
//
// and of NVMe's own multipath
//
//	/sys/class/nvme-subsystem/nvme-subsys0/nvme1/state                 live; new, resetting, connecting, deleting, dead
//	/sys/class/nvme-subsystem/nvme-subsys0/nvme1/transport             tcp; pcie, rdma, fc, loop
//	/sys/class/nvme-subsystem/nvme-subsys0/nvme1/nvme0c1n1/ana_state   optimized; non-optimized, inaccessible, …
//	/sys/class/nvme-subsystem/nvme-subsys0/nvme0n1                     the disk that people use
//
// A subsystem with one local (pcie) controller has no paths to lose: nvme-health covers it.
//
// https://docs.kernel.org/admin-guide/device-mapper/dm-multipath.html,
// https://docs.kernel.org/admin-guide/nvme-multipath.html

const (
	noPathFor   = 10 * time.Second // a controller that is being reset has no path meanwhile
	noPathFatal = time.Minute      // for a disk of the node: ports return after a failover of a minute

	reasonNoPath       = "MultipathNoPath"
	reasonPathsMissing = "MultipathDegraded"
)

// Multipath finds disks with several paths that lost some or all of them.
func Multipath() detect.Check {
	return detect.Check{
		ID: "multipath", Domain: "storage",
		Summary: "a disk of the storage network lost paths",
		Advice: "See `multipath -ll` or `nvme list-subsys` for which paths, and `dmesg -T` for why. If all paths " +
			"through one port are lost, check its cable, switch or zone (`/sys/class/fc_host/*/port_state`, the link " +
			"of the NIC). If no path is left, I/O waits or fails until one is back; pods that wait cannot be killed.",
		Doc: detect.Doc{
			Reads: []string{"/sys/block/dm-*/{dm/uuid,dm/name,slaves} and the state of the paths",
				mapperControl + " (DM_LIST_DEVICES, DM_TABLE_STATUS with DM_NOFLUSH_FLAG) in a child process",
				"/sys/class/nvme-subsystem/*/nvme*/{state,transport,*/ana_state}"},
			Why: "With one path left the next failure stops every pod on the disk; with none they hang or their " +
				"filesystems shut down.",
			Faults: []detect.Fault{
				{Reason: reasonNoPath, Severity: finding.Fatal, When: "no path is usable for 10 s: warning; fatal " +
					"after a minute where the filesystem of /, kubelet or the runtime is on it"},
				{Reason: reasonPathsMissing, Severity: finding.Warning, When: "a path is not running or live, or the " +
					"device mapper has it as failed, for 30 s, while another one is usable"},
			},
			FalseAlarms: "None known: paths that the storage keeps as inaccessible standby are not reported while " +
				"another one is usable. A path that was removed altogether is not noticed.",
		},
		Condition: detect.StorageProblem(),
		Every:     30 * time.Second,
		Wakes:     []detect.Wake{checkkit.KernelWake(), checkkit.LogWake("device-mapper: multipath")},
		Run:       new(heldStates).paths,
	}
}

// pathSet is one disk with its paths.
type pathSet struct {
	disk, alias string // dm-3 and mpatha; nvme0n1 and the subsystem
	usable      int
	standby     int      // healthy paths that the storage does not use
	lost        []string // other paths, with their state
}

func (m *heldStates) paths(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	names, err := checkkit.BlockNames(h.Files)
	if err != nil {
		return nil, err
	}
	var results checkkit.Results
	sets := mapperPaths(ctx, h, names, &results)
	nvme, err := nvmePaths(h.Files, &results)
	if err != nil {
		return nil, err
	}
	sets = append(sets, nvme...)
	m.begin()
	if len(sets) == 0 && results.Empty() {
		return nil, finding.NoneLeft("no disk has several paths")
	}
	for _, s := range sets {
		reason, least := reasonPathsMissing, passingState
		switch {
		case s.usable == 0:
			reason, least = reasonNoPath, noPathFor
		case len(s.lost) == 0:
			continue
		}
		if held := m.held(s.disk, reason, h.Clock().SinceBoot); held >= least {
			results.Settle(s.finding(ctx, h, reason, held >= noPathFatal))
		}
	}
	return results.Done()
}

// nvmePaths returns the namespaces of NVMe subsystems that are connected over a network or by several controllers.
func nvmePaths(files host.Files, results *checkkit.Results) ([]pathSet, error) {
	const class = "/sys/class/nvme-subsystem"
	subsystems, err := checkkit.ListSorted(files, class)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", class, err)
	}
	var sets []pathSet
	for _, subsystem := range subsystems {
		dir := class + "/" + subsystem
		entries, err := checkkit.ListSorted(files, dir)
		if err != nil {
			continue // was removed meanwhile
		}
		controllers, disks, err := readControllers(files, dir, entries)
		if results.Doubt(finding.Subject{Kind: "nvme-subsystem", Name: subsystem}, err) {
			continue
		}
		if len(controllers) == 1 && controllers[0].transport == "pcie" {
			continue
		}
		for _, disk := range disks {
			sets = append(sets, nvmePathSet(files, dir, disk, subsystem, controllers))
		}
	}
	return sets, nil
}

// nvmeController is one path to a subsystem.
type nvmeController struct{ name, state, transport string }

// readControllers returns the controllers (nvme1) and the disks (nvme0n1) of a subsystem.
func readControllers(files host.Files, dir string, entries []string) (controllers []nvmeController, disks []string,
	err error) {
	for _, entry := range entries {
		number, ok := strings.CutPrefix(entry, "nvme")
		switch {
		case !ok:
		case strings.Trim(number, "0123456789") == "":
			c := nvmeController{name: entry}
			if c.state, err = files.Text(dir + "/" + entry + "/state"); err != nil {
				return nil, nil, err
			}
			if c.transport, err = files.Text(dir + "/" + entry + "/transport"); err != nil {
				return nil, nil, err
			}
			controllers = append(controllers, c)
		case strings.Contains(number, "n") && !strings.Contains(number, "c"):
			disks = append(disks, entry)
		}
	}
	return controllers, disks, nil
}

// nvmePathSet evaluates each controller's path to one disk, nvme0n1: it is nvme0c1n1 in the controller's folder.
func nvmePathSet(files host.Files, dir, disk, subsystem string, controllers []nvmeController) pathSet {
	s := pathSet{disk: disk, alias: subsystem}
	instance, namespace, _ := strings.Cut(strings.TrimPrefix(disk, "nvme"), "n")
	for _, c := range controllers {
		if c.state != "live" {
			s.lost = append(s.lost, fmt.Sprintf("%s (%s) %s", c.name, checkkit.Sanitize(c.transport, 16),
				checkkit.Sanitize(c.state, 32)))
			continue
		}
		path := fmt.Sprintf("%s/%s/nvme%sc%sn%s/ana_state", dir, c.name, instance, strings.TrimPrefix(c.name, "nvme"),
			namespace)
		switch state, _ := checkkit.OptionalDeviceText(files, path); state {
		case "optimized", "non-optimized", "": // storage without ANA has no such file
			s.usable++
		case "inaccessible", "change":
			s.standby++
		default: // persistent-loss
			s.lost = append(s.lost, c.name+" "+state)
		}
	}
	return s
}

func (s pathSet) finding(ctx context.Context, h *host.Host, reason string, long bool) finding.Finding {
	all := s.usable + s.standby + len(s.lost)
	f := finding.Finding{
		Subject: deviceSubject(s.disk), Severity: finding.Warning, Reason: reason,
		Message: fmt.Sprintf("disk %s (%s): %d of %d paths are usable", s.disk, s.alias, s.usable, all),
		Facts: map[string]string{"alias": s.alias, "paths": fmt.Sprint(all), "usable": fmt.Sprint(s.usable),
			"standby": fmt.Sprint(s.standby)},
	}
	if len(s.lost) > 0 {
		f.Facts["lost"] = finding.JoinFirst(s.lost, 20)
		f.Message += "; lost: " + finding.JoinFirst(s.lost, 5)
	}
	if reason == reasonNoPath {
		addImpact(ctx, h, &f, long, true, s.disk)
	}
	return f
}

// mapperPaths returns the devices of multipathd. A path is usable if both the SCSI layer and the device mapper report
// it so: the former knows what the kernel or the transport gave up, the latter which paths fail I/O or multipathd's
// test.
func mapperPaths(ctx context.Context, h *host.Host, names []string, results *checkkit.Results) []pathSet {
	var sets []pathSet
	for _, name := range names {
		if !strings.HasPrefix(name, "dm-") {
			continue
		}
		uuid, err := checkkit.OptionalDeviceText(h.Files, "/sys/block/"+name+"/dm/uuid")
		if !results.Doubt(deviceSubject(name), err) && strings.HasPrefix(uuid, multipathUUID) {
			alias, _ := checkkit.OptionalDeviceText(h.Files, "/sys/block/"+name+"/dm/name") // for people only
			sets = append(sets, pathSet{disk: name, alias: alias})
		}
	}
	if len(sets) == 0 {
		return nil
	}
	failed, mapperErr := askMapper(ctx, h, probe.ProbeMultipath, parseMultipaths)
	for i := range sets {
		results.Doubt(deviceSubject(sets[i].disk), errors.Join(mapperErr, sets[i].readPaths(h.Files, failed)))
	}
	return sets
}

// readPaths reads the state of each path; failed is the device mapper's state, by device number of disk and path.
func (s *pathSet) readPaths(files host.Files, failed map[string]map[string]bool) error {
	var problems []error
	number, err := files.Text("/sys/block/" + s.disk + "/dev")
	if failed != nil && err == nil && failed[number] == nil {
		err = fmt.Errorf("the device mapper does not report %s", s.disk)
	}
	problems = append(problems, err)
	for _, path := range lowerDevices(files, s.disk) {
		state, err := checkkit.OptionalDeviceText(files, "/sys/block/"+path+"/device/state")
		problems = append(problems, err)
		if state == "running" || state == "live" || state == "" { // a path without a state is not a SCSI disk
			of, err := files.Text("/sys/block/" + path + "/dev")
			problems = append(problems, err)
			if state = ""; failed[number][of] {
				state = "failed"
			}
		}
		if state == "" {
			s.usable++
		} else {
			s.lost = append(s.lost, path+" "+state)
		}
	}
	return errors.Join(problems...)
}

// parseMultipaths parses the result of host.ProbeMultipath: the failed paths of each disk.
func parseMultipaths(text string) (map[string]map[string]bool, error) {
	disks := make(map[string]map[string]bool)
	for line := range strings.Lines(text) {
		disk, status, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		paths, err := parseMultipath(status)
		if !ok || err != nil {
			return nil, checkkit.InLine(line, errors.New("want a device and the status of a multipath target"))
		}
		disks[disk] = paths
	}
	return disks, nil
}

// parseMultipath parses a status line of drivers/md/dm-mpath.c, in which numbers count the words that follow: features,
// arguments of a hardware handler, groups of paths and the index of the one in use; for each group its state, arguments
// of its selector, its number of paths and the number of selector words after each path; for each path its device, A or
// F, and its number of failures.
//
//	2 0 0 0 1 1 E 0 2 0 8:16 F 1 8:32 A 0
func parseMultipath(status string) (map[string]bool, error) {
	w := countedWords{words: strings.Fields(status)}
	w.skip(w.count())
	w.skip(w.count())
	groups := w.count()
	w.count()
	paths := make(map[string]bool)
	for range groups {
		w.next()
		w.skip(w.count())
		members, behind := w.count(), w.count()
		for range members {
			path, state := w.next(), w.next()
			w.bad = w.bad || state != "A" && state != "F"
			paths[path] = state == "F"
			w.skip(1 + behind)
		}
	}
	if w.bad || len(w.words) > 0 {
		return nil, errors.New("malformed")
	}
	return paths, nil
}

// countedWords are words, some of which count those that follow.
type countedWords struct {
	words []string
	bad   bool // a word was missing or not a count; later words are invalid
}

func (w *countedWords) next() string {
	if len(w.words) == 0 {
		w.bad = true
		return ""
	}
	word := w.words[0]
	w.words = w.words[1:]
	return word
}

// count returns 0 if the word is not a possible count of the words that follow.
func (w *countedWords) count() int {
	n, err := strconv.ParseUint(w.next(), 10, 16)
	if err != nil || int(n) > len(w.words) {
		w.bad = true
		return 0
	}
	return int(n)
}

func (w *countedWords) skip(n int) {
	for range n {
		w.next()
	}
}
