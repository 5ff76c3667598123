package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A checkout that others can change is rejected before anything is built, with its folder and the remedy.
func TestCheckoutOfOthers(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "test/need/alone")
	if err := os.MkdirAll(filepath.Dir(program), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	if err := trusted(); err == nil || !strings.Contains(err.Error(), "others than root can change it; clone into") {
		t.Error(err)
	}
}
