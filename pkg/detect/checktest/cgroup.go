package checktest

import (
	"os"
	"testing"
	"time"
)

// RemoveCgroup removes a cgroup; the kernel forgets a dead process a moment after it was reaped.
func RemoveCgroup(t *testing.T, dir string) {
	t.Helper()
	var err error
	for range 3000 {
		if err = os.Remove(dir); err == nil || os.IsNotExist(err) {
			return
		}
		<-time.After(10 * time.Millisecond)
	}
	t.Errorf("remove %s: %v", dir, err)
}
