//! Functions that exist and do nothing: programs linked against the driver do not start unless
//! every name they were linked with is there.

use crate::call::export;
use crate::status::Status;

macro_rules! stubs {
    ($($name:ident)*) => {
        export! {
            $(fn $name() { Err(Status::NOT_SUPPORTED) })*
        }
    };
}

stubs! {
    cuArray3DCreate_v2 cuArray3DGetDescriptor_v2 cuArrayCreate_v2 cuArrayDestroy
    cuArrayGetDescriptor_v2 cuCtxAttach cuCtxGetCacheConfig cuCtxGetSharedMemConfig
    cuCtxSetCacheConfig cuCtxSetSharedMemConfig cuFuncSetBlockShape cuFuncSetCacheConfig
    cuFuncSetSharedSize cuIpcCloseMemHandle cuIpcGetEventHandle cuIpcGetMemHandle
    cuIpcOpenEventHandle cuIpcOpenMemHandle_v2 cuLaunch cuLaunchGrid cuLaunchGridAsync
    cuLinkAddData_v2 cuLinkAddFile_v2 cuLinkComplete cuLinkCreate_v2 cuLinkDestroy
    cuMemAllocManaged cuMemExportToShareableHandle cuMemHostGetFlags
    cuMemImportFromShareableHandle cuMemcpy2DAsync_v2 cuMemcpy2DUnaligned_v2 cuMemcpy2D_v2
    cuMemcpy3DAsync_v2 cuMemcpy3DPeer cuMemcpy3DPeerAsync cuMemcpy3D_v2 cuMemcpyAtoA_v2
    cuMemcpyAtoD_v2 cuMemcpyAtoH_v2 cuMemcpyDtoA_v2 cuMemcpyHtoA_v2 cuMemsetD2D16Async
    cuMemsetD2D16_v2 cuMemsetD2D32Async cuMemsetD2D32_v2 cuMemsetD2D8Async cuMemsetD2D8_v2
    cuModuleGetGlobal_v2 cuModuleGetSurfRef cuModuleGetTexRef cuModuleLoad cuParamSetSize
    cuParamSetTexRef cuParamSetf cuParamSeti cuParamSetv cuProfilerInitialize cuProfilerStart
    cuProfilerStop cuStreamAttachMemAsync cuSurfRefGetArray cuSurfRefSetArray cuTexRefCreate
    cuTexRefDestroy cuTexRefGetAddressMode cuTexRefGetAddress_v2 cuTexRefGetArray
    cuTexRefGetFilterMode cuTexRefGetFlags cuTexRefGetFormat cuTexRefSetAddress2D_v3
    cuTexRefSetAddressMode cuTexRefSetAddress_v2 cuTexRefSetArray cuTexRefSetFilterMode
    cuTexRefSetFlags cuTexRefSetFormat
}
