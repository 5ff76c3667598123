// Package house holds no code: its test keeps the rules of the house, which package may know which.
package house
