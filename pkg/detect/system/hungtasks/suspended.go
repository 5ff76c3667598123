package hungtasks

import (
	"fmt"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// A suspended mapped device holds back all I/O until it is resumed:
//
//	/sys/block/dm-3/dm/suspended   1     lvm and multipath suspend a device for milliseconds, while they change its table
//	/sys/block/dm-3/dm/name        vg0-data
//
// A tool that died in between leaves it suspended. The held I/O is not in flight, so no count of I/O shows it. The
// files are read only if tasks hang.
//
// https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-block-dm

// maxSuspended bounds how many are named.
const maxSuspended = 5

// suspendedDevices returns the names of suspended mapped devices. It skips unreadable ones, because the names only make
// a finding more specific.
func suspendedDevices(files host.Files) []string {
	names, err := checkkit.BlockNames(files)
	if err != nil {
		return nil
	}
	var suspended []string
	for _, name := range names {
		if !strings.HasPrefix(name, "dm-") {
			continue
		}
		state, err := files.Text("/sys/block/" + name + "/dm/suspended")
		if err != nil || state != "1" {
			continue
		}
		mapped, err := checkkit.OptionalDeviceText(files, "/sys/block/"+name+"/dm/name")
		if err != nil || mapped == "" {
			mapped = name
		}
		suspended = append(suspended, mapped)
	}
	return suspended
}

// addSuspended names suspended devices as a possible cause.
func addSuspended(findings []finding.Finding, files host.Files) {
	suspended := suspendedDevices(files)
	if len(suspended) == 0 {
		return
	}
	is := "is"
	if len(suspended) > 1 {
		is = "are"
	}
	text := finding.JoinFirst(suspended, maxSuspended)
	for i := range findings {
		findings[i].Facts["suspended"] = text
		findings[i].Message += fmt.Sprintf("; of mapped devices %s %s suspended, which holds back all I/O to it", text,
			is)
	}
}
