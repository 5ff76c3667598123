package probe

import (
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// ProbeJournals lists the journal files in the directory at the path that systemd-journald gave up because they were
// not closed or are damaged: values are "system@00062f…-7f3a….journal~" without content. The disk of the logs may hang.
const ProbeJournals ProbeOp = "journals"

// maxJournals bounds the answer. journald keeps at most 100 files, those that it gave up included (SystemMaxFiles=).
const maxJournals = 1000

func probeJournals(path string) (ProbeAnswer, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return refusal(err)
	}
	dir := os.NewFile(uintptr(fd), path)
	defer dir.Close()
	names, err := dir.Readdirnames(1 << 18)
	if err != nil && !errors.Is(err, io.EOF) { // io.EOF: it is empty
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
