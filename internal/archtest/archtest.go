// Package archtest holds no code: its tests enforce the rules which package may import which.
package archtest
