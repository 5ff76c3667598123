package probe

import (
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// ProbeJournals lists, of the journal files in the directory that the path is, those that systemd-journald gave up
// because they were not closed or are damaged: values are "system@00062f…-7f3a….journal~" without content. The disk
// of the logs may hang.
const ProbeJournals ProbeOp = "journals"

// maxJournals bounds the answer. journald keeps 100 files at most, given up ones included (SystemMaxFiles=).
const maxJournals = 1000

func probeJournals(path string) (ProbeAnswer, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return refusal(err)
	}
	dir := os.NewFile(uintptr(fd), path)
	defer dir.Close()
	names, err := dir.Readdirnames(1 << 18)
	if err != nil && !errors.Is(err, io.EOF) { // which says that it is empty
		return refusal(err)
	}
	answer := ProbeAnswer{Values: make(map[string]string)}
	for _, name := range names {
		if strings.HasSuffix(name, ".journal~") && len(answer.Values) < maxJournals {
			answer.Values[hosterr.Clip(strings.ToValidUTF8(name, "?"))] = ""
		}
	}
	return answer, nil
}
