// Package archtest holds no code: its tests keep the rules between packages, which may import which.
package archtest
