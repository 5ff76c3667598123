package inside

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// insert loads a kernel module of test/guest/modules, and removes it at the end of the test.
func insert(t *testing.T, name string) {
	t.Helper()
	needGuest(t)
	run(t, "insmod", filepath.Join(*modules, name+".ko"))
	t.Cleanup(func() {
		if _, err := os.Stat("/sys/module/" + name); err != nil {
			return // the test removed it
		}
		if out, err := exec.Command("rmmod", name).CombinedOutput(); err != nil {
			t.Errorf("rmmod %s: %v: %s", name, err, out)
		}
	})
}

// setParameter writes a parameter of a module.
func setParameter(t *testing.T, module, parameter, value string) {
	t.Helper()
	put(t, "/sys/module/"+module+"/parameters/"+parameter, value)
}
