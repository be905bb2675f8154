// Package imports tests which packages may do I/O.
package imports
