package storage

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
)

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
