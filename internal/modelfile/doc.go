// Package modelfile writes and reads trained models in three forms: text,
// NumPy's .npz and .safetensors. docs/formats.md has their exact layout.
//
// A file holds the values of all parameters, rows sorted by key, and Metadata:
// what the job was, so that predictions can be made from raw records by whoever
// has nothing but the file. Rows that were never pushed are not in it; they
// stand for their initial value.
//
// # Writing
//
// Write streams: it asks the Content for runs of rows and keeps none of them,
// so a model costs no second copy in memory, however large it is. The binary
// forms have keys before values and ask for each table twice. Merge makes one
// sorted Content of the shards' parts. The writer leaves the file where it is:
// callers write to a temporary one and rename it.
//
// # Reading
//
// Read recognises the form by the content, checks all that can be checked, and
// hands out runs in the order of the file: metadata and numbers of rows first.
// Files are not trusted. Nothing is allocated by what a length field claims
// before the file's size has been seen to allow it; every error is an ErrFile
// that says what is wrong. Damage is found: .npz has a CRC-32 of each array, the
// other forms an xxh64 of all that follows the head.
package modelfile
